"""Strings <-> tokens: tokenizer, chat template, detokenizer, stop strings. Pure: no process, no HTTP, no model."""
