"""What every client's program is asked: the question, the tools, and the form of an answer.

    PROGRAM.py BASE_URL MODEL API TASK...

API is chat or responses: which of OpenAI's the client calls. What became of each task is a line of JSON in told.jsonl,
in the folder that it runs in: frameworks print what they like.
"""

import asyncio
import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
    """Arguments of the tool that has to be called: no more than these, so that a call is short."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Oslo", "Lima"]
    nights: int = Field(ge=1, le=14)


def weather_of(city: str) -> str:
    """Oslo's, or raises ValueError."""
    calls.append({"city": city})
    if city != "Oslo":
        raise ValueError(f"no station in {city}")
    return OSLO_WEATHER


def is_over_responses() -> bool:
    """What the command line says of the API."""
    return sys.argv[3] == "responses"


def run(**tasks: Task) -> None:
    """Does the tasks of the command line, one after another."""
    base_url, model, _, *names = sys.argv[1:]
    with open("told.jsonl", "w") as file:
        for name in names:
            calls.clear()
            told = tasks[name](base_url, model)
            if inspect.isawaitable(told):
                told = asyncio.run(_awaited(told))
            file.write(json.dumps({"task": name, "calls": calls} | told) + "\n")


async def _awaited(told: Awaitable[Told]) -> Told:
    return await told
