"""smolagents' ToolCallingAgent: it asks for a call in every turn, and a call of final_answer ends it."""

import json
from typing import Any, Literal

from smolagents import ChatMessage, MessageRole, OpenAIModel, ToolCallingAgent, tool
from weather import BOOK, DESCRIBE, QUESTION, Told, Town, run, weather_of


@tool
def get_weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: Its name.
    """
    return weather_of(city)


@tool
def book(city: Literal["Oslo", "Lima"], is_double: bool) -> str:
    """Books a room.

    Args:
        city: Where.
        is_double: Whether for two.
    """
    return f"{city} {is_double}"


def model_of(base_url: str, model: str) -> OpenAIModel:
    return OpenAIModel(model, api_base=base_url, api_key="none", client_kwargs={"max_retries": 0, "timeout": 60})


def conversation(base_url: str, model: str, **fields: Any) -> Told:
    agent = ToolCallingAgent([get_weather], model_of(base_url, model), max_steps=4, **fields)
    return {"text": agent.run(QUESTION)}


def streamed(base_url: str, model: str) -> Told:
    return conversation(base_url, model, stream_outputs=True)


def ask(text: str) -> list[ChatMessage]:
    return [ChatMessage(MessageRole.USER, [{"type": "text", "text": text}])]


def answer(base_url: str, model: str) -> Told:
    form = {"name": "town", "schema": Town.model_json_schema(), "strict": True}
    said = model_of(base_url, model).generate(
        ask(DESCRIBE), response_format={"type": "json_schema", "json_schema": form}
    )
    return {"answer": Town.model_validate_json(said.content).model_dump()}


def required(base_url: str, model: str) -> Told:
    said = model_of(base_url, model).generate(ask(BOOK), tools_to_call_from=[book], parallel_tool_calls=False)
    [call] = said.tool_calls
    return {"answer": json.loads(call.function.arguments)}


run(conversation=conversation, streamed=streamed, answer=answer, required=required)
