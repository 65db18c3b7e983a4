# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "langchain==1.5.2",
#     "langchain-openai==1.7.4",
#     "langchain-anthropic==1.7.10",
# ]
# ///
"""LangChain: `ChatOpenAI(base_url=…)`, `ChatAnthropic(base_url=…)`, and agents with a name, as supervisors have."""

from apples import Apples
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from parts import DEMO, KEY, LONG, MODEL, STORY, TOOLS, fails, part, run

model = ChatOpenAI(model=MODEL, base_url=f"{DEMO}v1", api_key=KEY, max_retries=0)
claude = ChatAnthropic(model_name=MODEL, base_url=DEMO.rstrip("/"), api_key=KEY, max_retries=0)


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@part
def invoke():
    assert "6" in model.invoke(STORY).content


@part
def stream():
    assert "6" in "".join(chunk.content for chunk in model.stream(STORY))


@part
def batch():
    assert all("6" in answer.content for answer in model.batch([STORY] * 4))


@part
def responses():
    assert "6" in ChatOpenAI(model=MODEL, base_url=f"{DEMO}v1", api_key=KEY, use_responses_api=True).invoke(STORY).text


@part
def anthropic():
    assert "6" in claude.invoke(STORY).content


@part
def structured():
    assert model.with_structured_output(Apples, method="json_schema").invoke(STORY).name


@part
def tools():
    bound = ChatOpenAI(model=MODEL, base_url=f"{TOOLS}v1", api_key=KEY).bind_tools([add], tool_choice="add")
    assert bound.invoke("Add 1 and 2.").tool_calls[0]["name"] == "add"


@part
def named_agent():
    agent = create_agent(model, [], name="bob")
    state = agent.invoke({"messages": [HumanMessage(STORY)]})
    assert agent.invoke({"messages": [*state["messages"], HumanMessage("And Ann?", name="ann")]})


@part
def cut_call_in_the_history():
    broken = AIMessage("", invalid_tool_calls=[{"name": "add", "args": '{"a": 1, ', "id": "a", "error": "cut"}])
    assert model.invoke([HumanMessage(STORY), broken, HumanMessage("Go on.")])


@part
def a_prompt_that_is_too_long():
    fails(lambda: model.invoke(LONG), "OpenAIContextOverflowError", "ContextOverflowError")


@part
def a_prompt_that_is_too_long_for_anthropic():
    fails(lambda: claude.invoke(LONG), "AnthropicContextOverflowError", "ContextOverflowError")


@part
def max_tokens_beyond_the_context():
    assert model.bind(max_tokens=4000).invoke(STORY)


run()
