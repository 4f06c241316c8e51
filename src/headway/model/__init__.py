"""Models as Programs: ops.py has the words, program.py the list of them; one file an architecture writes it."""

from headway.model.program import CacheSpec, Program, describe
from headway.model.registry import ARCHITECTURES, make_program

__all__ = ["ARCHITECTURES", "CacheSpec", "Program", "describe", "make_program"]
