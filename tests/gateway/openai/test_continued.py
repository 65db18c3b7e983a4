"""OpenAI's streams and answers with a choice that another replica continues: equal to the undisturbed ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from service.model import Checkpoint
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.gateway.conftest import UNMEASURED
from tests.gateway.doubles import Dying
from tests.gateway.helpers import over
from tests.gateway.openai.helpers import CHAT, COMPLETIONS, ask, chat, completion, frames
from tests.replicas import local_generator

#: None leaves its drafts to the replica: how many pay is a matter of its past, and so are an answer's counts.
BODIES = [
    (CHAT, chat(max_tokens=24, mode="static", temperature=0.9, seed=4, n=2, ignore_eos=True, logprobs=True)),
    (
        CHAT,
        chat("w5 w6", max_tokens=24, mode="speculative", mrp_steps=2, seed=2, stream_options={"include_usage": True}),
    ),
    (COMPLETIONS, completion(max_tokens=24, mode="remask", seed=2, threshold=0.3, logprobs=1, return_trace=True)),
    (
        COMPLETIONS,
        completion(prompt=["w1 w2 w3", "w4"], echo=True, max_tokens=24, mode="static", temperature=0.9, seed=1),
    ),
]


@pytest.fixture(scope="module")
def other(settings: Settings, checkpoint: Checkpoint) -> Iterator[Replica]:
    generator = local_generator("r1", checkpoint, settings, deps=UNMEASURED)
    yield generator
    generator.close()


def essence(value: Any) -> Any:
    """The parts that are equal in two runs of one request: no ids, times or prefill; floats are rounded."""
    if isinstance(value, list):
        return [essence(one) for one in value]
    if isinstance(value, float):
        return round(value, 3)
    if not isinstance(value, dict):
        return value
    left_out = {"id", "created", "cached_tokens", "tokens_per_forward_total", "prefill", "mrp"}
    kept = {name: one for name, one in value.items() if name not in left_out and not name.endswith("_ms")}
    return {name: essence(one) for name, one in kept.items()}


def by_choice(events: list[dict[str, Any]]) -> dict[int, list[Any]]:
    """The frames of every choice, in order. Frames without a choice are under -1."""
    found: dict[int, list[Any]] = {}
    for event in events:
        index = event["choices"][0]["index"] if event["choices"] else -1
        found.setdefault(index, []).append(essence(event))
    return found


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_streams_cut_after_every_block(
    generator: Replica, other: Replica, path: str, body: dict[str, Any]
) -> None:
    body = body if "stream_options" in body else body | {"stream_options": {"include_usage": True}}
    async with over(other) as http:
        whole = by_choice(await frames(http, path, body))
    answers = len(whole) - 1
    for after in range(9):
        backend = Dying(generator, other, after)
        async with over(backend) as http:
            assert by_choice(await frames(http, path, body)) == whole, after
        if len(backend.requests) == answers:
            break
    assert after >= 3


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_whole_answers(generator: Replica, other: Replica, path: str, body: dict[str, Any]) -> None:
    body = {name: value for name, value in body.items() if name != "stream_options"}
    async with over(other) as http:
        whole = await ask(http, path, body)
    async with over(Dying(generator, other, after=0)) as http:
        assert essence(await ask(http, path, body)) == essence(whole)
