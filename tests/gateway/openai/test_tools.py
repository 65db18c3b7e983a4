"""Tools as OpenAI's own client asks for them, unmodified: whole and streamed, in every mode, with results sent back."""

import json
import random
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from service.api.content import past_arguments
from service.decode.modes import MODES
from tests.constraints.schemas import random_schema
from tests.gateway.apis import CHAT, ask, chat, refused, user
from tests.gateway.helpers import over

QUESTION: Any = user("What is 12 plus 5?")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def tool(name: str, schema: dict[str, Any] | None = SCHEMA, **more: Any) -> Any:
    return {
        "type": "function",
        "function": {"name": name, "description": f"It can {name}.", "parameters": schema, **more},
    }


TOOLS = [tool("add"), tool("sub", strict=False), tool("now", None)]
NAMED: Any = {"type": "function", "function": {"name": "add"}}
SOME: Any = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


def with_tools(**fields: Any) -> Any:
    return {"model": "golden", "messages": QUESTION, "tools": TOOLS, "max_tokens": 200, "seed": 1} | fields


def checked(calls: Any) -> list[tuple[str, str]]:
    """The names and arguments of calls, which are those that may be."""
    for call in calls:
        assert call.id.startswith("call_")
        schema = {"add": SCHEMA, "sub": SCHEMA, "now": {"const": {}}}[call.function.name]
        jsonschema.validate(json.loads(call.function.arguments), schema)
    assert len({call.id for call in calls}) == len(calls)
    return [(call.function.name, call.function.arguments) for call in calls]


@pytest.mark.parametrize("mode", [*MODES, None])
async def test_calls_in_every_mode_whole_and_streamed(qwen3, mode):
    for choice, temperature in (("auto", 0), ("required", 1), (NAMED, 1)):
        request = with_tools(tool_choice=choice, temperature=temperature, extra_body={"mode": mode})
        answer = (await qwen3.chat.completions.create(**request)).choices[0]
        calls = checked(answer.message.tool_calls or ())
        assert answer.finish_reason == "tool_calls"
        assert calls
        if choice != "auto":
            assert answer.message.content is None
        if choice == NAMED:
            assert [name for name, _ in calls] == ["add"]
        async with qwen3.chat.completions.stream(**request) as stream:
            final = (await stream.get_final_completion()).choices[0]
        assert checked(final.message.tool_calls or ()) == calls
        assert (final.finish_reason, final.message.content) == ("tool_calls", answer.message.content)


async def test_a_stream_names_a_call_first_and_then_writes_its_arguments(qwen3):
    stream = await qwen3.chat.completions.create(**with_tools(tool_choice=NAMED), stream=True)
    deltas = [(part.choices[0].delta, part.choices[0].finish_reason) async for part in stream]
    assert deltas[0][0].role == "assistant"
    assert deltas[-1][1] == "tool_calls"
    assert all(delta.content is None for delta, _ in deltas)
    first, *rest = [call for delta, _ in deltas for call in delta.tool_calls or ()]
    assert (first.index, first.type) == (0, "function")
    assert first.id
    assert first.function.arguments == ""
    assert len(rest) > 1
    assert all(call.index == 0 and call.id is None and call.function and call.function.name is None for call in rest)


async def test_results_are_sent_back(qwen3):
    answer = await qwen3.chat.completions.create(**with_tools(tool_choice="required"))
    message = answer.choices[0].message
    assert message.tool_calls
    results = [{"role": "tool", "tool_call_id": call.id, "content": "17", "name": "x"} for call in message.tool_calls]
    strict = with_tools(tool_choice="required", tools=[openai.pydantic_function_tool(Sum)], parallel_tool_calls=False)
    parsed = (await qwen3.chat.completions.parse(**strict)).choices[0].message
    async with qwen3.chat.completions.stream(**strict) as stream:
        streamed = (await stream.get_final_completion()).choices[0].message
    for turn in (message, message.model_dump(), message.model_dump(exclude_none=True), parsed, streamed):
        assert turn
        calls = turn["tool_calls"] if isinstance(turn, dict) else turn.tool_calls
        assert calls
        for result, call in zip(results, calls, strict=False):
            result["tool_call_id"] = call["id"] if isinstance(call, dict) else call.id
        again = await qwen3.chat.completions.create(**with_tools(messages=[*QUESTION, turn, *results]))
        assert again.usage.prompt_tokens > answer.usage.prompt_tokens + 20


class Sum(BaseModel):
    """Adds two numbers."""

    a: int = Field(ge=0, le=99)
    b: int = Field(ge=0, le=99)


async def test_several_answers_have_calls_of_their_own(qwen3):
    request = with_tools(n=3, temperature=1.5, tool_choice="required", logprobs=True)
    answer = await qwen3.chat.completions.create(**request)
    whole = [checked(choice.message.tool_calls or ()) for choice in answer.choices]
    assert all(whole)
    assert all(choice.logprobs and choice.logprobs.content for choice in answer.choices)
    texts: list[str] = [""] * 3
    async for part in await qwen3.chat.completions.create(**request, stream=True):
        for choice in part.choices:
            texts[choice.index] += "".join(
                call.function.arguments or "" for call in choice.delta.tool_calls or () if call.function
            )
    assert texts == ["".join(arguments for _, arguments in calls) for calls in whole]


async def test_only_some_tools_may_be_called(qwen3):
    for seed in range(4):
        answer = await qwen3.chat.completions.create(**with_tools(tool_choice=SOME, temperature=1, seed=seed))
        assert {call.function.name for call in answer.choices[0].message.tool_calls or ()} == {"add"}  # type: ignore[union-attr]


async def test_without_calls_the_prompt_has_no_tools(qwen3):
    free = await qwen3.chat.completions.create(model="golden", messages=QUESTION, max_tokens=20)
    none = await qwen3.chat.completions.create(**with_tools(tool_choice="none", max_tokens=20))
    assert none.choices[0].message == free.choices[0].message
    assert none.usage.prompt_tokens == free.usage.prompt_tokens
    assert "constraint_met" not in (none.choices[0].model_extra or {})


async def test_the_form_of_the_answer_holds_where_nothing_is_called(caller):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["x", "y"]}}}
    contents = set()
    async with over(caller) as http:
        for seed in range(6):
            body = with_tools(response_format=form, temperature=2, seed=seed)
            [choice] = (await ask(http, CHAT, body))["choices"]
            assert choice["constraint_met"]
            contents.add(choice["message"]["content"])
    assert contents <= {None, '"x"', '"y"'}


UNUSUAL = {
    "type": "object",
    "properties": {
        "names": {"type": "array", "uniqueItems": True, "maxItems": 2, "items": {"enum": ["a", "b"]}},
        "path": {"type": "string", "format": "path", "pattern": "^(?!/)", "maxLength": 3},
    },
    "required": ["names"],
}


async def test_tools_with_unusual_schemas_are_served_with_the_others(qwen3):
    tools = [*TOOLS, tool("find", UNUSUAL), tool("broken", {"properties": {"x": {"type": "strin"}}})]
    whole = await qwen3.chat.completions.with_raw_response.create(**with_tools(tools=tools, max_tokens=9))
    keywords = ("uniqueItems", "pattern", "type")
    assert whole.headers["x-ignored-fields"] == ", ".join(f"tools.function.parameters.{name}" for name in keywords)
    choices: list[Any] = [{"type": "function", "function": {"name": name}} for name in ("find", "broken", "add")]
    for choice in choices:
        answer = await qwen3.chat.completions.create(**with_tools(tools=tools, tool_choice=choice, max_tokens=150))
        [call] = answer.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == choice["function"]["name"]
        arguments = json.loads(call.function.arguments)
        if call.function.name == "find":
            assert {"names"} <= set(arguments) <= {"names", "path"}
            assert set(arguments["names"]) <= {"a", "b"}


async def test_an_answer_that_was_cut_has_a_cut_call(qwen3):
    whole = await qwen3.chat.completions.create(**with_tools(tool_choice=NAMED))
    for tokens in range(1, 50, 6):
        answer = (await qwen3.chat.completions.create(**with_tools(tool_choice=NAMED, max_tokens=tokens))).choices[0]
        assert answer.finish_reason == "length"
        for call, other in zip(
            answer.message.tool_calls or (), whole.choices[0].message.tool_calls or (), strict=False
        ):
            assert call.function.name == "add"  # type: ignore[union-attr]
            assert other.function.arguments.startswith(call.function.arguments)  # type: ignore[union-attr]
    stopped = (await qwen3.chat.completions.create(**with_tools(tool_choice=NAMED, stop='"b"'))).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.tool_calls
    assert (stopped.model_extra or {})["constraint_met"] is False


@pytest.mark.slow
async def test_two_hundred_schemas_in_all_modes(qwen3):
    """Every call that is complete fits its schema, whatever the mode, greedy and sampled, forced to call or not."""
    rng = random.Random(11)
    complete = calls = 0
    for number in range(200):
        inner = random_schema(rng, 2)
        schema = {"type": "object", "properties": {"p": inner}, "required": ["p"], "additionalProperties": False}
        mode = [*MODES][number % len(MODES)]
        answer = await qwen3.chat.completions.create(
            **with_tools(
                tools=[tool("probe", schema)],
                tool_choice=("required", "auto")[number % 2],
                temperature=(0, 0.7, 1.5)[number % 3],
                seed=number,
                max_tokens=300,
                extra_body={"mode": mode},
            )
        )
        [choice] = answer.choices
        complete += choice.finish_reason == "tool_calls"
        for call in (choice.message.tool_calls or ()) if choice.finish_reason == "tool_calls" else ():
            jsonschema.validate(json.loads(call.function.arguments), schema)  # type: ignore[union-attr]
            calls += 1
    print(f"{complete} of 200 answers called, {calls} calls")  # noqa: T201
    assert complete > 150


# --- refusals ----------------------------------------------------------------------------------------

CALLED = {
    "role": "assistant",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
}
ANSWERED = {"role": "tool", "tool_call_id": "a", "content": "1"}


def talk(*messages: Any) -> dict[str, Any]:
    return {"messages": [*QUESTION, *messages]}


def calling(arguments: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "add", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        ({"tools": [{"type": "function"}]}, "tools.0.function", "tools.0.function is missing"),
        ({"tools": [tool("a", {"type": "array"}, strict=True)]}, "tools", "allowed is 'object'"),
        (
            {"tools": [tool("a", {"properties": {"x": False}, "required": ["x"]}, strict=True)]},
            "tools",
            "the parameters of 'a': at /properties/x: Unsatisfiable",
        ),
        ({"tools": TOOLS * 100}, "tools", "256"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "mul"}}},
            "tool_choice",
            "'mul', which is none of the tools",
        ),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "there are no tools"),
        ({"tool_choice": NAMED, "tools": []}, "tool_choice", "'add'"),
        ({"ignore_eos": True}, "ignore_eos", "calls of tools end the answer"),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs",
            "give one",
        ),
        (talk(ANSWERED), "messages.1.tool_call_id", "'a', no call before has this id"),
        (talk(CALLED, {"role": "tool", "content": "1"}), "messages.2", "tool_call_id is missing"),
    ],
)
async def test_a_refusal_names_the_field(caller, fields, param, text):
    async with over(caller) as http:
        error = await refused(http, CHAT, with_tools() | fields)
    assert error["param"] == param
    assert text in error["message"]


async def test_a_template_without_tools_refuses_them(http):
    error = await refused(http, CHAT, chat(tools=TOOLS))
    assert error["param"] == "tools"
    assert error["message"] == "tools are given, and the chat template of this checkpoint knows no tools"
    for effort, ignored in (("none", None), ("low", "reasoning_effort")):
        response = await http.post(CHAT, json=chat(reasoning_effort=effort))
        assert (response.status_code, response.headers.get("x-ignored-fields")) == (200, ignored)
    assert (await http.post(CHAT, json=chat(tools=TOOLS, tool_choice="none"))).status_code == 200


@pytest.mark.parametrize(
    ("received", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ('{"a": 1, "b": "x', {"a": 1}),
        ('{"a": "\\u00', {}),
        *((nothing, {}) for nothing in (" ", "", None, "null", "[1]", [1], 7, '{"a": NaN}', "no JSON")),
    ],
)
def test_arguments_of_earlier_calls(received, arguments):
    assert past_arguments(received) == arguments
