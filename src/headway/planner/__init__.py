"""Pure functions over a Program: what a model costs before it is loaded."""

from headway.planner.memory import MemoryPlan, plan_memory

__all__ = ["MemoryPlan", "plan_memory"]
