"""Models on disk: opened, checked, mapped; downloaded; never unpickled."""
