"""OpenAI's own client, with the loop that its guide shows."""

import json
from typing import Any

from openai import OpenAI, pydantic_function_tool
from weather import BOOK, DESCRIBE, QUESTION, Booking, Told, Town, run, weather_of

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def client_of(base_url: str) -> OpenAI:
    return OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60)


def result_of(call: Any) -> dict[str, Any]:
    try:
        text = weather_of(**json.loads(call.function.arguments))
    except ValueError as error:
        text = f"Error: {error}"
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def conversation(base_url: str, model: str) -> Told:
    client, messages = client_of(base_url), [{"role": "user", "content": QUESTION}]
    while True:
        answer = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER])  # type: ignore[arg-type]
        message = answer.choices[0].message
        if not message.tool_calls:
            return {"text": message.content}
        messages += [message.model_dump(exclude_none=True), *(result_of(call) for call in message.tool_calls)]


def streamed(base_url: str, model: str) -> Told:
    client, messages = client_of(base_url), [{"role": "user", "content": QUESTION}]
    while True:
        with client.chat.completions.stream(model=model, messages=messages, tools=[WEATHER]) as stream:  # type: ignore[arg-type]
            message = stream.get_final_completion().choices[0].message
        if not message.tool_calls:
            return {"text": message.content}
        messages += [message.model_dump(exclude_none=True), *(result_of(call) for call in message.tool_calls)]


def answer(base_url: str, model: str) -> Told:
    said = client_of(base_url).chat.completions.parse(
        model=model, messages=[{"role": "user", "content": DESCRIBE}], response_format=Town
    )
    town = said.choices[0].message.parsed
    assert town is not None
    return {"answer": town.model_dump()}


def required(base_url: str, model: str) -> Told:
    said = client_of(base_url).chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": BOOK}],
        tools=[pydantic_function_tool(Booking, name="book")],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    [call] = said.choices[0].message.tool_calls or []
    booking = call.function.parsed_arguments
    assert isinstance(booking, Booking)
    return {"answer": booking.model_dump()}


run(conversation=conversation, streamed=streamed, answer=answer, required=required)
