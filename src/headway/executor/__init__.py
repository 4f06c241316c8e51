"""Runs a Program: weights and the arrays of a step in, logits out (base.py says how)."""
