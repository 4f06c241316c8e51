"""Fakes that ship with Headway: a model worked by hand, scripted models, a clock that stands."""
