"""What a worker process can run: one file a framework, found by dotted name (base.py says what it has to be)."""
