"""Calls and results of every type that OpenAI's and Anthropic's clients know: both are shown, or both are left out."""

import json
import typing
from contextlib import suppress
from functools import cache
from itertools import product
from typing import Any, Literal, get_args, get_origin

import pytest
from openai.types.responses import response_input_item_param

from service.api.anthropic.routes import parse_messages
from service.api.content import past_arguments
from service.api.openai.parse import parse_chat
from service.api.openai.responses.parse import parse_responses
from service.api.parse import RequestContext
from service.errors import InvalidRequest
from tests.gateway.apis import message, response, user
from tests.gateway.doubles import CARD

#: a field -> a value that its client sends
VALUES: dict[str, Any] = {
    "action": {"type": "exec", "command": ["ls"]},
    "approval_request_id": "one",
    "arguments": '{"a": 1}',
    "call_id": "one",
    "code": "ls",
    "content": "shown",
    "id": "one",
    "input": {"a": 1},
    "name": "run",
    "operation": {"type": "delete_file", "path": "a"},
    "output": "shown",
    "result": "shown",
    "server_label": "box",
    "tool_use_id": "one",
    "tools": [{"type": "function"}],
}


def samples(union: Any) -> dict[str, dict[str, Any]]:
    """An example of each type of items or blocks that a client's package knows."""
    made = {}
    for kind in (kind for kind in get_args(union) if get_origin(kind) is None):
        hints = typing.get_type_hints(kind)
        [name] = literals_of(hints["type"])[:1]
        made[name] = {"type": name} | {field: VALUES[field] for field in hints if field in VALUES}
    return made


def literals_of(hint: Any) -> list[str]:
    inner = get_args(hint)
    return list(inner) if get_origin(hint) is Literal else [name for part in inner for name in literals_of(part)]


ITEMS = samples(response_input_item_param.ResponseInputItemParam)
#: items of calls -> the type of their results, if clients send it
CALLS = {kind: f"{kind.removesuffix('_call')}_output" for kind in ITEMS if kind in {"program", "tool_search_call"}}
CALLS |= {kind: f"{kind}_output" for kind in ITEMS if kind.endswith("_call") and kind not in CALLS}
assert len(ITEMS) > 25


@cache
def blocks() -> dict[str, dict[str, Any]]:
    from anthropic.types.beta import beta_content_block_param  # takes seconds

    made = samples(beta_content_block_param.BetaContentBlockParam)
    assert len(made) > 20
    return made


def messages_of(parse: Any, body: dict[str, Any]) -> tuple[list[Any], str]:
    """The messages that the chat template gets, and the names of what was left out."""
    context = RequestContext(CARD, 60.0)
    return list(parse(body, context).requests[0].messages), context.ignored.headers.get("x-ignored-fields", "")


def check_pair(made: list[Any]) -> None:
    """One call with a name and arguments, and its result, or neither."""
    calls = [call for turn in made for call in turn.get("tool_calls", ())]
    results = [turn for turn in made if turn["role"] == "tool"]
    assert [call["id"] for call in calls] == [turn["tool_call_id"] for turn in results]
    for call, turn in zip(calls, results, strict=True):
        assert call["function"]["name"] == turn["name"] != ""
        assert isinstance(call["function"]["arguments"], dict)
        assert turn["content"] in {"shown", '[{"type": "function"}]'}
        assert made.index(turn) > 0


@pytest.mark.parametrize("kind", CALLS)
def test_an_items_call_and_its_result(kind: str) -> None:
    call, function_output = ITEMS[kind], ITEMS["function_call_output"]
    outputs = [function_output, *([ITEMS[CALLS[kind]]] if CALLS[kind] in ITEMS else [])]
    for output in outputs:
        made, ignored = messages_of(parse_responses, response([*user("a"), call, output, *user("b")]))
        check_pair(made)
        assert (len(made), ignored) == (4, ""), "the client has the result, so both are shown"
    made, ignored = messages_of(parse_responses, response([*user("a"), call, *user("b")]))
    alone = kind in {"function_call", "custom_tool_call"}
    assert (len(made), ignored) == ((3, "") if alone else (2, f"input.{kind}"))


@pytest.mark.parametrize("kind", [kind for kind in ITEMS if kind not in CALLS and kind != "item_reference"])
def test_an_item_that_is_no_call_leaves_the_others(kind: str) -> None:
    item = ITEMS[kind] | ({"role": "user", "content": "shown"} if kind == "message" else {})
    if kind in {"function_call_output", "custom_tool_call_output"}:
        with pytest.raises(InvalidRequest, match="'one', no call before has this id"):
            messages_of(parse_responses, response([*user("a"), item]))
        return
    item = item | ({"content": []} if kind == "reasoning" else {})
    made, ignored = messages_of(parse_responses, response([*user("a"), item, *user("b")]))
    assert [turn["content"] for turn in made] == ["a", *(["shown"] if kind == "message" else []), "b"]
    assert ignored == ("" if kind in {"message", "reasoning"} else f"input.{kind}")


def test_a_blocks_call_and_its_result(subtests: pytest.Subtests) -> None:
    uses = [kind for kind in blocks() if kind.endswith("tool_use")]
    for kind, result in product(uses, [kind for kind in blocks() if kind.endswith("tool_result")]):
        with subtests.test(kind=kind, result=result):
            check_blocks(kind, result)


def check_blocks(kind: str, result: str) -> None:
    call, block = blocks()[kind], blocks()[result]
    turns = [*user("a"), {"role": "assistant", "content": [call]}, *user([block, {"type": "text", "text": "b"}])]
    made, _ = messages_of(parse_messages, message(messages=turns))
    check_pair(made)
    assert [turn["role"] for turn in made] == ["user", "assistant", "tool", "user"]
    ran_elsewhere = {"role": "assistant", "content": [{"type": "text", "text": "c"}, call, block]}
    if kind != "tool_use" and result != "tool_result":
        made, _ = messages_of(parse_messages, message(messages=[*user("a"), ran_elsewhere, *user("b")]))
        assert [turn["content"] for turn in made] == ["a", "c", "b"]
        check_pair(made)


def test_a_block_that_is_no_call_leaves_the_others(subtests: pytest.Subtests) -> None:
    for kind in blocks():
        if not kind.endswith(("tool_use", "tool_result")):
            with subtests.test(kind=kind):
                check_other_block(kind)


def check_other_block(kind: str) -> None:
    block = blocks()[kind] | {"text": "shown", "thinking": "shown", "title": "shown"}
    turns = [*user("a"), {"role": "assistant", "content": [block, {"type": "text", "text": "c"}]}, *user("b")]
    made, _ = messages_of(parse_messages, message(messages=turns))
    assert [turn["role"] for turn in made] == ["user", "assistant", "user"]
    text = made[1]["content"] + made[1].get("reasoning_content", "")
    assert ("shown" in text) == (kind in {"compaction", "document", "image", "search_result", "text", "thinking"})
    assert made[1]["content"].endswith("c")


RAN = [{"stdout": "a\n", "outcome": {"type": "exit"}}]
SHELL = {"type": "shell_call_output", "call_id": "one", "output": RAN}
SCREEN = {"type": "computer_call_output", "call_id": "one", "output": {"type": "computer_screenshot", "image_url": "x"}}


@pytest.mark.parametrize(
    ("call", "output", "name", "arguments", "content"),
    [
        ("custom_tool_call", {"output": "w6"}, "run", {"input": {"a": 1}}, "w6"),
        ("local_shell_call", {"output": "w6"}, "local_shell", {"action": VALUES["action"]}, "w6"),
        ("apply_patch_call", {"output": "w6"}, "apply_patch", {"operation": VALUES["operation"]}, "w6"),
        ("mcp_call", {"output": "w6"}, "run", {"a": 1}, "w6"),
        ("shell_call", SHELL, "shell", {"action": VALUES["action"]}, json.dumps(RAN)),
        ("computer_call", SCREEN, "computer", {"action": VALUES["action"]},
         "[image not shown: this model reads text only]"),
    ],
)  # fmt: skip
def test_the_texts_of_an_items_call(call: str, output: Any, name: str, arguments: Any, content: str) -> None:
    items = [*user("a"), ITEMS[call], {"type": "function_call_output", "call_id": "one"} | output]
    made, _ = messages_of(parse_responses, response(items))
    [call_made] = made[1]["tool_calls"]
    assert call_made["function"] == {"name": name, "arguments": arguments}
    assert made[2] == {"role": "tool", "content": content, "tool_call_id": "one", "name": name}


def test_two_calls_have_their_own_results_in_any_order() -> None:
    calls = [ITEMS["local_shell_call"] | {"call_id": call_id, "id": f"item_{call_id}"} for call_id in ("a", "b")]
    outputs = [{"type": "local_shell_call_output", "id": call_id, "output": call_id} for call_id in ("b", "a")]
    made, _ = messages_of(parse_responses, response([*user("a"), *calls, *outputs]))
    assert [(turn["tool_call_id"], turn["content"]) for turn in made[2:]] == [("b", "b"), ("a", "a")]
    with pytest.raises(InvalidRequest, match="'b', no call before has this id"):
        messages_of(parse_responses, response([*user("a"), *outputs, *calls]))


@pytest.mark.parametrize("odd", [None, 7, [], {}, "text", {"type": {}}, {"type": "mcp_tool_use", "id": [], "name": 7}])
def test_odd_items_and_blocks_are_no_fault(odd: Any) -> None:
    """They are refused or left out, as before."""
    for parse, body in (
        (parse_responses, response([*user("a"), odd])),
        (parse_messages, message(messages=[*user("a"), odd, *user("b")])),
        (parse_messages, message(messages=[*user("a"), {"role": "assistant", "content": [odd]}, *user("b")])),
        (parse_chat, message(messages=[*user("a"), odd])),
    ):
        with suppress(InvalidRequest):
            assert messages_of(parse, body)[0]


def test_the_older_call_of_a_chat_beside_an_empty_list() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [], "function_call": {"name": "run", "arguments": ""}}
    turns = [*user("a"), called, {"role": "function", "name": "run", "content": "shown"}]
    made, _ = messages_of(parse_chat, message(messages=turns))
    check_pair(made)
    assert past_arguments(made[1]["tool_calls"][0]["function"]["arguments"]) == {}
