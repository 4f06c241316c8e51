"""CrewAI: a crew of one agent, with a client of OpenAI's that is a version back."""

from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from weather import BOOK, DESCRIBE, QUESTION, Booking, Told, Town, run, weather_of


@tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    return weather_of(city)


def model_of(base_url: str, model: str, **fields: Any) -> LLM:
    return LLM(model=f"openai/{model}", base_url=base_url, api_key="none", max_retries=0, timeout=60, **fields)


def work(llm: LLM, tools: list[Any], question: str, **fields: Any) -> Any:
    agent = Agent(role="Forecaster", goal="Tell the weather.", backstory="You are brief.", llm=llm, tools=tools)
    task = Task(description=question, expected_output="A sentence.", agent=agent, **fields)
    return Crew(agents=[agent], tasks=[task], verbose=False).kickoff()


def conversation(base_url: str, model: str) -> Told:
    return {"text": work(model_of(base_url, model), [get_weather], QUESTION).raw}


def streamed(base_url: str, model: str) -> Told:
    return {"text": work(model_of(base_url, model, stream=True), [get_weather], QUESTION).raw}


def answer(base_url: str, model: str) -> Told:
    town = model_of(base_url, model).call(DESCRIBE, response_model=Town)
    return {"answer": Town.model_validate(town).model_dump()}


def required(base_url: str, model: str) -> Told:
    """With tools it always says tool_choice auto; extra_body goes over that."""
    more = {"tool_choice": "required", "parallel_tool_calls": False}
    llm = model_of(base_url, model, additional_params={"extra_body": more})
    made: list[Any] = []
    form = {"type": "function", "function": {"name": "book", "parameters": Booking.model_json_schema()}}

    def book(**arguments: Any) -> str:
        made.append(Booking.model_validate(arguments).model_dump())
        return "booked"

    llm.call(BOOK, tools=[form], available_functions={"book": book})
    return {"answer": made[0]}


run(conversation=conversation, streamed=streamed, answer=answer, required=required)
