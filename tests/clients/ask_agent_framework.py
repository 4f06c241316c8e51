"""Microsoft's Agent Framework."""

from typing import Any

from agent_framework import Agent, tool
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from weather import BOOK, DESCRIBE, QUESTION, Booking, Told, Town, is_over_responses, run, weather_of


def get_weather(city: str) -> str:
    """Weather of a city."""
    return weather_of(city)


def client_of(base_url: str, model: str) -> OpenAIChatClient | OpenAIChatCompletionClient:
    kind = OpenAIChatClient if is_over_responses() else OpenAIChatCompletionClient
    client = kind(model, base_url=base_url, api_key="none")
    client.function_invocation_configuration["include_detailed_errors"] = True
    return client


async def conversation(base_url: str, model: str) -> Told:
    agent = Agent(client_of(base_url, model), tools=[get_weather])
    return {"text": (await agent.run(QUESTION)).messages[-1].text}


async def streamed(base_url: str, model: str) -> Told:
    stream = Agent(client_of(base_url, model), tools=[get_weather]).run(QUESTION, stream=True)
    pieces = [update.text async for update in stream]
    assert len(pieces) > 5
    return {"text": (await stream.get_final_response()).messages[-1].text}


async def answer(base_url: str, model: str) -> Told:
    said = await Agent(client_of(base_url, model)).run(DESCRIBE, options={"response_format": Town})
    return {"answer": said.value.model_dump()}


async def required(base_url: str, model: str) -> Told:
    """The loop asks for a call in its first turn only; what comes behind the call is cut short."""
    made = []

    @tool(name="book", description="Books a room.", schema=Booking)
    def book(**booking: Any) -> str:
        made.append(Booking.model_validate(booking).model_dump())
        return "booked"

    options = {"tool_choice": "required", "allow_multiple_tool_calls": False, "max_tokens": 200}
    await Agent(client_of(base_url, model), tools=[book]).run(BOOK, options=options)
    return {"answer": made[0]}


run(conversation=conversation, streamed=streamed, answer=answer, required=required)
