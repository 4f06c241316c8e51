"""KV memory: blocks, the prefix tree, what each sequence holds (integers), and the arrays behind the numbers."""
