"""Orders of roles that a chat template refuses, on every route, also those that the server makes itself."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from service.model import load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.apis import CHAT, COUNT, GENERATE, MESSAGES, RESPONSES, SCORE, ask, refused, user
from tests.gateway.chatting import give_qwen3
from tests.gateway.conftest import UNMEASURED
from tests.gateway.helpers import over
from tests.replicas import local_generator
from tests.text.templates import QWEN3
from tests.text.test_arrangement import LATE, NO_USER, raising

TEMPLATE = LATE + NO_USER + raising("'forbidden' in messages[-1].content", "never this") + QWEN3


@pytest.fixture(scope="module")
def strict(qwen3_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """A replica whose chat template takes one system message, at the beginning, and a user's message."""
    folder = give_qwen3(tmp_path_factory.mktemp("strict") / "golden", TEMPLATE)
    settings = qwen3_settings.model_copy(update={"model": str(folder)})
    with closing(local_generator("r0", load_checkpoint(folder), settings, deps=UNMEASURED)) as generator:
        yield generator


def system(text: str, role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


ADD = {"name": "add", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "w6"}
MIDDLE = [*user("a"), answer("b"), system("s"), *user("c")]
ONE_FIRST = [system("s"), *user("a"), answer("b"), *user("c")]
#: the route, the body, and the messages of a chat with the same prompt
BODIES: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    (CHAT, {"messages": MIDDLE}, ONE_FIRST),
    (CHAT, {"messages": [system("s"), *user("a"), system("t", "developer")]}, [system("s\n\nt"), *user("a")]),
    (CHAT, {"messages": [system("s"), system("t"), *user("a")]}, [system("s\n\nt"), *user("a")]),
    (CHAT, {"messages": [*user("a"), answer("b"), system("s")]}, [system("s"), *user("a"), answer("b")]),
    (CHAT, {"messages": [system("s")]}, [system("s"), *user("")]),
    (MESSAGES, {"messages": [*user("a"), system("s")]}, [system("s"), *user("a")]),
    (MESSAGES, {"messages": MIDDLE, "system": [{"type": "text", "text": "r"}]}, [system("r\n\ns"), *ONE_FIRST[1:]]),
    (COUNT, {"messages": MIDDLE, "system": "r"}, [system("r\n\ns"), *ONE_FIRST[1:]]),
    (RESPONSES, {"input": [*user("a"), system("s", "developer")], "instructions": "r"}, [system("r\n\ns"), *user("a")]),
    (RESPONSES, {"input": MIDDLE}, ONE_FIRST),
    (GENERATE, {"messages": MIDDLE}, ONE_FIRST),
    (GENERATE, {"messages": [*user("a"), system("s", "developer")]}, [system("s"), *user("a")]),
    (SCORE, {"items": [{"messages": MIDDLE, "labels": ["a"]}]}, ONE_FIRST),
]


def prompt_tokens(answered: dict[str, Any]) -> int:
    usage = answered.get("usage", answered)
    if "prompt_tokens" in usage:
        return int(usage["prompt_tokens"])
    return int(usage["input_tokens"] + usage.get("cache_read_input_tokens", 0))


@pytest.mark.parametrize(("path", "body", "same"), BODIES)
async def test_system_messages_may_stand_anywhere(strict, path, body, same):
    limits = {GENERATE: {"max_new_tokens": 2}, RESPONSES: {"max_output_tokens": 2}, COUNT: {}, SCORE: {}}
    sent = {"model": "golden", **limits.get(path, {"max_tokens": 2}), **body}
    thinking = {} if path not in {MESSAGES, COUNT} else {"reasoning_effort": "none"}  # as Anthropic's default
    async with over(strict) as http:
        expected = await ask(http, CHAT, {"model": "golden", "messages": same, "max_tokens": 2, **thinking})
        answered = await ask(http, path, sent)
        assert prompt_tokens(answered) == prompt_tokens(expected)


async def test_system_messages_between_calls_and_results(strict):
    turns = [*user("a"), {"role": "assistant", "content": [CALL]}, system("s"), *user([RESULT]), system("t")]
    body = {"model": "golden", "tools": [ADD], "messages": turns}
    same = {**body, "system": "s\n\nt", "messages": [turn for turn in turns if turn["role"] != "system"]}
    async with over(strict) as http:
        assert await ask(http, COUNT, body) == await ask(http, COUNT, same)


async def test_a_refusal_has_the_words_of_the_template(strict):
    async with over(strict) as http:
        body = {"model": "golden", "messages": [*MIDDLE, *user("forbidden")], "max_tokens": 2}
        error = await refused(http, CHAT, body)
    assert error["param"] == "messages"
    assert error["message"].startswith("the chat template refuses these messages: never this")
