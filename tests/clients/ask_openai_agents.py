"""The agents of OpenAI's SDK."""

import json

from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from weather import BOOK, DESCRIBE, QUESTION, Booking, Told, Town, is_over_responses, run, weather_of

set_tracing_disabled(True)


@function_tool(failure_error_function=lambda context, error: f"Error: {error}")
def get_weather(city: str) -> str:
    """Weather of a city."""
    return weather_of(city)


@function_tool
def book(booking: Booking) -> str:
    """Books a room."""
    return json.dumps(booking.model_dump())


def model_of(base_url: str, model: str) -> Model:
    kind = OpenAIResponsesModel if is_over_responses() else OpenAIChatCompletionsModel
    return kind(model, AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0))


def conversation(base_url: str, model: str) -> Told:
    agent = Agent("weather", model=model_of(base_url, model), tools=[get_weather])
    return {"text": Runner.run_sync(agent, QUESTION).final_output}


async def streamed(base_url: str, model: str) -> Told:
    agent = Agent("weather", model=model_of(base_url, model), tools=[get_weather])
    result = Runner.run_streamed(agent, QUESTION)
    async for _ in result.stream_events():
        pass
    return {"text": result.final_output}


def answer(base_url: str, model: str) -> Told:
    agent = Agent("towns", model=model_of(base_url, model), output_type=Town)
    return {"answer": Runner.run_sync(agent, DESCRIBE).final_output.model_dump()}


def required(base_url: str, model: str) -> Told:
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    agent = Agent(
        "rooms",
        model=model_of(base_url, model),
        tools=[book],
        model_settings=settings,
        tool_use_behavior="stop_on_first_tool",
    )
    return {"answer": json.loads(Runner.run_sync(agent, BOOK).final_output)}


run(conversation=conversation, streamed=streamed, answer=answer, required=required)
