"""What every client's program is asked: the question, the tools, and the form of an answer; what became of it is
printed as the last line.

    PROGRAM.py BASE_URL MODEL TASK
"""

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import BaseModel, Field

# Nobody is told that a test has run.
os.environ.update(
    CREWAI_DISABLE_TELEMETRY="true",
    CREWAI_TRACING_ENABLED="false",
    OTEL_SDK_DISABLED="true",
    LANGSMITH_TRACING="false",
    LITELLM_LOCAL_MODEL_COST_MAP="True",
    ADK_DISABLE_TELEMETRY="true",
)

QUESTION = "How is the weather in Oslo and in Lima?"
OSLO_WEATHER = "rain, 12 degrees"
LIMA_ERROR = "no station in Lima"
BOOK = "Book a room."
DESCRIBE = "Describe a town."

Told = dict[str, Any]
Task = Callable[[str, str], Told | Awaitable[Told]]

calls: list[dict[str, Any]] = []
"""The arguments of each call of a tool, in the order of their running."""


class Town(BaseModel):
    """Every answer of this form is short."""

    name: Literal["Oslo", "Lima"]
    people: int = Field(ge=0, le=9_999_999)
    is_coastal: bool


class Booking(BaseModel):
    """Arguments of the tool that has to be called."""

    city: Literal["Oslo", "Lima"]
    nights: int = Field(ge=1, le=14)


def weather_of(city: str) -> str:
    """Oslo's, or raises ValueError."""
    calls.append({"city": city})
    if city != "Oslo":
        raise ValueError(f"no station in {city}")
    return OSLO_WEATHER


def run(**tasks: Task) -> None:
    """Does the task of the command line."""
    base_url, model, name = sys.argv[1:]
    told = tasks[name](base_url, model)
    if inspect.isawaitable(told):
        told = asyncio.run(_awaited(told))
    print("\n" + json.dumps({"calls": calls} | told))


async def _awaited(told: Awaitable[Told]) -> Told:
    return await told
