"""The words: what travels between rooms. Plain values, no arrays, no behaviour beyond their own checks."""
