"""Headway: a model-serving system. `import headway` costs nothing; the names below are loaded when they are used."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.core.output import CompletionOutput, RequestOutput
    from headway.core.sampling import SamplingParams
    from headway.core.structured import StructuredOutputsParams
    from headway.llm import LLM, AsyncLLM

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_HOMES = {
    "LLM": "headway.llm",
    "AsyncLLM": "headway.llm",
    "SamplingParams": "headway.core.sampling",
    "StructuredOutputsParams": "headway.core.structured",
    "CompletionOutput": "headway.core.output",
    "RequestOutput": "headway.core.output",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)
