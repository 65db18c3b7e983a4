# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "langgraph==1.2.24",
#     "langchain-openai==1.7.4",
# ]
# ///
"""LangGraph: an agent with a name, two turns."""

from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from parts import DEMO, KEY, MODEL, STORY, part, run

model = ChatOpenAI(model=MODEL, base_url=f"{DEMO}v1", api_key=KEY, max_retries=0)


@part
def agent():
    answer = create_react_agent(model, [], name="ann").invoke({"messages": [("user", STORY)]})
    assert "6" in answer["messages"][-1].content


@part
def two_turns():
    a = create_react_agent(model, [], name="ann")
    first = a.invoke({"messages": [("user", STORY)]})
    assert a.invoke({"messages": [*first["messages"], ("user", STORY)]})["messages"][-1].content


run()
