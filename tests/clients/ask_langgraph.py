"""LangChain's model in a graph of LangGraph: a node that asks and one that runs the tools."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from weather import BOOK, DESCRIBE, QUESTION, Booking, Told, Town, is_over_responses, run, weather_of


@tool
def get_weather(city: str) -> str:
    """Weather of a city."""
    return weather_of(city)


def model_of(base_url: str, model: str, **fields: object) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=base_url,
        api_key="none",
        model=model,
        max_retries=0,
        timeout=60,
        use_responses_api=is_over_responses(),
        output_version="v1",
        **fields,
    )


def talk(model: ChatOpenAI) -> Told:
    asking = model.bind_tools([get_weather])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [asking.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([get_weather], handle_tool_errors=True))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    end = graph.compile().invoke({"messages": [("user", QUESTION)]})
    return {"text": end["messages"][-1].text}


def conversation(base_url: str, model: str) -> Told:
    return talk(model_of(base_url, model))


def streamed(base_url: str, model: str) -> Told:
    return talk(model_of(base_url, model, streaming=True))


def answer(base_url: str, model: str) -> Told:
    town = model_of(base_url, model).with_structured_output(Town).invoke(DESCRIBE)
    assert isinstance(town, Town)
    return {"answer": town.model_dump()}


def required(base_url: str, model: str) -> Told:
    asking = model_of(base_url, model).bind_tools(
        [tool("book", description="Books a room.", args_schema=Booking)(print)],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    [call] = asking.invoke(BOOK).tool_calls
    return {"answer": call["args"]}


run(conversation=conversation, streamed=streamed, answer=answer, required=required)
