"""Runs a Program: weights and the arrays of a step in, logits out (base.py says how)."""

from headway.executor.dtype import choose_dtype
from headway.executor.factory import EXECUTORS, make_executor

__all__ = ["EXECUTORS", "choose_dtype", "make_executor"]
