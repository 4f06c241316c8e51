"""pydantic-ai's agent. Its default way to an answer of a form is a tool that has to be called."""

from collections.abc import AsyncIterable

from pydantic_ai import Agent, AgentStreamEvent, ModelRetry, NativeOutput, PartDeltaEvent, RunContext
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from weather import BOOK, DESCRIBE, QUESTION, Booking, Told, Town, is_over_responses, run, weather_of


def get_weather(city: str) -> str:
    """Weather of a city."""
    try:
        return weather_of(city)
    except ValueError as error:
        raise ModelRetry(str(error)) from error


def model_of(base_url: str, model: str) -> Model:
    kind = OpenAIResponsesModel if is_over_responses() else OpenAIChatModel
    return kind(model, provider=OpenAIProvider(base_url=base_url, api_key="none"))


def conversation(base_url: str, model: str) -> Told:
    agent = Agent(model_of(base_url, model), tools=[get_weather])
    return {"text": agent.run_sync(QUESTION).output}


async def streamed(base_url: str, model: str) -> Told:
    """By events: run_stream would take the words in front of the calls for the answer."""
    agent = Agent(model_of(base_url, model), tools=[get_weather])
    num_parts = 0

    async def count(_: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        nonlocal num_parts
        async for event in events:
            num_parts += isinstance(event, PartDeltaEvent)

    answered = await agent.run(QUESTION, event_stream_handler=count)
    assert num_parts > 5
    return {"text": answered.output}


def answer(base_url: str, model: str) -> Told:
    agent = Agent(model_of(base_url, model), output_type=NativeOutput(Town), retries=0)
    return {"answer": agent.run_sync(DESCRIBE).output.model_dump()}


def required(base_url: str, model: str) -> Told:
    agent = Agent(model_of(base_url, model), output_type=Booking, retries=0)
    return {"answer": agent.run_sync(BOOK, model_settings={"parallel_tool_calls": False}).output.model_dump()}


run(conversation=conversation, streamed=streamed, answer=answer, required=required)
