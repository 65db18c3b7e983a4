"""Prompts of almost a megabyte, in every API: refused without being encoded, and no other prompt waits for one."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import service.demo
from service.messages.wire import Failure
from service.model import load_checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.apis import CHAT, COMPLETIONS, COUNT, GENERATE, MESSAGES, RESPONSES, SCORE, refused, user
from tests.gateway.conftest import UNMEASURED
from tests.gateway.helpers import over, replica_request_of
from tests.replicas import local_generator

DIGITS = "1234567890" * 90_000
NAMED = {"model": "demo", "max_tokens": 4}
#: a route, a body, and the field that is too long
TOO_LONG: list[tuple[str, dict[str, Any], str]] = [
    (GENERATE, {"prompt": DIGITS}, "prompt"),
    (GENERATE, {"messages": user(DIGITS)}, "messages"),
    (COMPLETIONS, {**NAMED, "prompt": ["a", DIGITS]}, "prompt"),
    (CHAT, {**NAMED, "messages": [*user("a"), {"role": "assistant", "content": DIGITS}, *user("b")]}, "messages"),
    (RESPONSES, {"model": "demo", "input": DIGITS}, "input"),
    (MESSAGES, {**NAMED, "messages": user(DIGITS)}, "messages"),
    (MESSAGES, {**NAMED, "system": DIGITS, "messages": user("a")}, "messages"),
    (COUNT, {"model": "demo", "messages": user(DIGITS)}, "messages"),
    (SCORE, {"model": "demo", "items": [{"prompt": DIGITS}], "labels": ["a"]}, "items.0.prompt"),
    (
        SCORE,
        {"model": "demo", "items": [{"prompt": "1[?]" * 30_000}], "mark": "[?]", "labels": ["a"]},
        "items.0.prompt",
    ),
    (SCORE, {"model": "demo", "items": [{"messages": user(DIGITS)}], "labels": ["a"]}, "items.0.messages"),
]


@pytest.fixture(scope="module")
def demo() -> Iterator[Replica]:
    folder = str(Path(service.demo.__file__).parent)
    settings = Settings(model=folder, served_model_name="demo", device="cpu", dtype="float32", kv_cache_tokens=2048)
    with closing(local_generator("r0", load_checkpoint(folder), settings, deps=UNMEASURED)) as generator:
        yield generator


@pytest.fixture
def encoding_nothing(demo: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = demo.codec.tokenize

    def encoded(text: str) -> list[int]:
        assert len(text) < 1000
        return encode(text)

    monkeypatch.setattr(demo.codec, "tokenize", encoded)


@pytest.mark.usefixtures("encoding_nothing")
@pytest.mark.parametrize(("path", "body", "param"), TOO_LONG)
async def test_a_prompt_that_cannot_fit_is_not_encoded(demo, path, body, param):
    async with over(demo, served_model_name="demo") as http:
        error = await refused(http, path, body)
    assert error["param"] == param
    assert re.search(r"1024 tokens stand for at most 1024 x \d+ bytes", error["message"])


@pytest.mark.usefixtures("encoding_nothing")
async def test_a_label_that_is_no_token_is_not_encoded(demo):
    async with over(demo, served_model_name="demo") as http:
        error = await refused(http, SCORE, {"model": "demo", "items": [{"prompt": "a"}], "labels": ["a", DIGITS]})
    assert error["param"] == "items.0.labels.1"
    assert "is several tokens, allowed is one" in error["message"]


async def test_no_prompt_of_a_usual_length_waits_for_a_huge_one(generator, monkeypatch):
    held, encode = threading.Event(), generator.codec.tokenize

    def encoded(text: str) -> list[int]:
        if "w6" in text:
            assert held.wait(60)
        return list(encode(text))

    monkeypatch.setattr(generator.codec, "tokenize", encoded)
    prompts = ("w6 " * 2**15, "w5 " * 2000)
    huge, usual = (replica_request_of(generator.status().card, {"prompt": prompt}) for prompt in prompts)
    waiting = asyncio.create_task(generator.encode(huge))
    await asyncio.sleep(0)
    assert len((await generator.encode(usual)).token_ids) == 2000
    assert not waiting.done()
    held.set()
    assert isinstance(await waiting, Failure)
