# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "langgraph==1.2.24",
#     "langchain-openai==1.7.4",
# ]
# ///
"""LangGraph: graphs of `ChatOpenAI(base_url=…)`; its agents have names, which they write into the messages."""

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from parts import DEMO, KEY, MODEL, STORY, part, run

model = ChatOpenAI(model=MODEL, base_url=f"{DEMO}v1", api_key=KEY, max_retries=0)


@part
def graph():
    builder = StateGraph(MessagesState)
    builder.add_node("ask", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    assert "6" in builder.compile().invoke({"messages": [("user", STORY)]})["messages"][-1].content


@part
def named_agents():
    agent = create_react_agent(model, [], name="bob")
    state = agent.invoke({"messages": [("user", STORY)]})
    assert agent.invoke({"messages": [*state["messages"], ("user", "And Ann?")]})["messages"][-1].content


@part
def stream():
    agent = create_react_agent(model, [], name="bob")
    assert list(agent.stream({"messages": [("user", STORY)]}, stream_mode="messages"))


run()
