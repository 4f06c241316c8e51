"""Google's agent development kit, through LiteLLM as its guide says for servers like OpenAI's."""

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from weather import BOOK, DESCRIBE, QUESTION, Booking, Told, Town, run, weather_of


def get_weather(city: str) -> str:
    """Weather of a city."""
    return weather_of(city)


def model_of(base_url: str, model: str, **fields: Any) -> LiteLlm:
    return LiteLlm(f"openai/{model}", api_base=base_url, api_key="none", num_retries=0, **fields)


def tell_error(tool: Any, args: Any, context: Any, error: Exception) -> dict[str, Any]:
    return {"error": str(error)}


async def say(agent: LlmAgent, question: str, mode: StreamingMode = StreamingMode.NONE) -> str:
    """The last words."""
    runner = InMemoryRunner(agent, app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="user")
    message, said = types.UserContent(question), ""
    async for event in runner.run_async(
        user_id="user", session_id=session.id, new_message=message, run_config=RunConfig(streaming_mode=mode)
    ):
        if event.is_final_response() and event.content and not event.partial:
            said = "".join(part.text or "" for part in event.content.parts or [])
    return said


def agent_of(base_url: str, model: str) -> LlmAgent:
    return LlmAgent(
        name="weather", model=model_of(base_url, model), tools=[get_weather], on_tool_error_callback=tell_error
    )


async def conversation(base_url: str, model: str) -> Told:
    return {"text": await say(agent_of(base_url, model), QUESTION)}


async def streamed(base_url: str, model: str) -> Told:
    return {"text": await say(agent_of(base_url, model), QUESTION, StreamingMode.SSE)}


async def answer(base_url: str, model: str) -> Told:
    agent = LlmAgent(name="towns", model=model_of(base_url, model), output_schema=Town)
    return {"answer": Town.model_validate_json(await say(agent, DESCRIBE)).model_dump()}


async def required(base_url: str, model: str) -> Told:
    """A mode of ANY is tool_choice required."""
    made = []

    def book(booking: Booking, tool_context: Any = None) -> str:
        """Books a room."""
        made.append(Booking.model_validate(booking).model_dump())
        return "booked"

    def end(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> None:
        tool_context.actions.skip_summarization = True

    config = types.GenerateContentConfig(
        tool_config=types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="ANY"))
    )
    agent = LlmAgent(
        name="rooms",
        model=model_of(base_url, model, parallel_tool_calls=False),
        tools=[book],
        generate_content_config=config,
        after_tool_callback=end,
    )
    await say(agent, BOOK)
    return {"answer": made[0]}


run(conversation=conversation, streamed=streamed, answer=answer, required=required)
