"""Answers begun by one replica and ended by another, cut after every block: equal to the undisturbed ones."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from service.api.arrival import Arrival
from service.api.generator import Generator, load_generator
from service.api.wire import Chunk, Resume, Work
from service.decode.params import Static
from service.engine.request import SamplingParams, Stats
from service.errors import EngineFailed
from service.model import Checkpoint
from service.settings import Settings
from tests.api.conftest import MakeGenerator
from tests.api.doubles import Dying
from tests.api.generate.helpers import PROMPT, ask, body, essence, frames, streamed
from tests.api.helpers import eventually, over, page

#: every mode, with knobs that make it work for its tokens
MODES: list[dict[str, Any]] = [
    {"mode": "static"},
    {"mode": "static", "tokens_per_step": 3},
    {"mode": "dynamic", "threshold": 0.3},
    {"mode": "direct", "mrp_steps": 2},
    {"mode": "speculative", "mrp_steps": 3},
    {"mode": "remask", "threshold": 0.3},
    {"mode": "sequential", "entropy_bound": 3.0},
    {"mode": "entropy", "entropy_bound": 3.0},
    {"mode": "speculative", "mrp_steps": 2, "verify": "entropy", "entropy_bound": 3.0},
]
#: prompts that fill their last block (of 8) and that do not
PROMPTS = (PROMPT, [*PROMPT, 1, 2, 3], [5, 6, 7])


async def assert_same_after_every_block(first: Generator, second: Generator, request: Mapping[str, Any]) -> int:
    """Cuts the answer everywhere; how many items it has."""
    async with over(second) as http:
        whole = await streamed(http, request)
    for after in itertools.count():
        backend = Dying(first, second, after)
        async with over(backend) as http:
            continued = await streamed(http, request)
            metrics = await page(http)
        assert essence(continued) == essence(whole), after
        if len(backend.works) == 1:  # nothing was left to lose
            return after
        assert metrics("mrp_request_failovers_total", reason="replica_lost") == 1
        assert backend.works[-1].resume.num_blocks == after
        assert continued["stats"]["forwards"]["prefill"] <= 2
        assert continued["stats"]["queue_ms"] <= continued["stats"]["first_block_ms"] <= continued["stats"]["total_ms"]
    raise AssertionError("unreachable")


@pytest.fixture(scope="module")
def replicas(settings: Settings, generator: Generator) -> Iterator[tuple[Generator, Generator]]:
    other = load_generator("r1", settings)
    yield generator, other
    other.close()


@pytest.fixture
def mortal(make_generator: MakeGenerator) -> Generator:
    return make_generator("mortal")


@pytest.mark.parametrize(
    ("prompt", "temperature"), list(zip(PROMPTS, (0, 0.9, 0.9), strict=True)), ids=["whole", "partial", "short"]
)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
async def test_every_mode(
    replicas: tuple[Generator, Generator], mode: dict[str, Any], temperature: float, prompt: list[int]
) -> None:
    request = body(prompt_token_ids=prompt, max_new_tokens=30, temperature=temperature, seed=3, ignore_eos=True)
    assert await assert_same_after_every_block(*replicas, request | mode | {"return_trace": True}) >= 4


@pytest.mark.parametrize("mode", MODES[::2], ids=lambda mode: mode["mode"])
async def test_stop_tokens(replicas: tuple[Generator, Generator], mode: dict[str, Any]) -> None:
    request = body(max_new_tokens=40, temperature=0.9, seed=5, ignore_eos=True) | mode
    async with over(replicas[0]) as http:
        tokens = (await ask(http, request))["token_ids"]
    for token in sorted(set(tokens[9:30]))[:4]:
        await assert_same_after_every_block(*replicas, request | {"stop_token_ids": [token]})


async def test_stop_texts_over_the_borders_of_blocks(replicas: tuple[Generator, Generator]) -> None:
    """A stop text that begins in one block and ends in the next, or only seems to."""
    request = body(prompt_token_ids=None, prompt="w17 w4 w5", max_new_tokens=32, temperature=0.9, seed=1)
    request["ignore_eos"] = True
    async with over(replicas[0]) as http:
        names = (await ask(http, request))["text"].split()
        pieces = [len(frame["token_ids"]) for name, frame in await frames(http, request) if name == "block"]
    borders = list(itertools.accumulate(pieces))[:-1]
    assert len(borders) >= 3
    for border in borders[::2]:
        spanning = " ".join(names[border - 2 : border + 1])
        for stop in (spanning, spanning + "?"):
            await assert_same_after_every_block(*replicas, request | {"stop": stop})


@pytest.mark.parametrize("seed", range(4))
async def test_halves_of_characters(make_generator: MakeGenerator, byte_checkpoint: Checkpoint, seed: int) -> None:
    first, second = make_generator("r0", byte_checkpoint), make_generator("r1", byte_checkpoint)
    request = body(temperature=3, seed=seed, max_new_tokens=64, ignore_eos=True)
    await assert_same_after_every_block(first, second, request)


async def test_whole_answers(replicas: tuple[Generator, Generator]) -> None:
    request = body(max_new_tokens=30, temperature=0.9, seed=3, mode="speculative", mrp_steps=2)
    async with over(replicas[1]) as http:
        whole = await ask(http, request)
    async with over(Dying(*replicas, after=0)) as http:
        assert essence(await ask(http, request)) == essence(whole)
        assert (await page(http))("mrp_request_failovers_total", reason="replica_lost") == 1


async def test_an_engine_that_fails_in_the_midst(mortal: Generator, generator: Generator) -> None:
    """No death of a process: the replica itself says that it cannot go on."""
    request = body(max_new_tokens=30, seed=1)
    async with over(generator) as http:
        whole = await streamed(http, request)
    engine, steps = mortal._worker._engine, 0
    real = engine.step

    def step() -> Any:
        nonlocal steps
        steps += 1
        if steps > 12:
            raise RuntimeError("broken")
        return real()

    engine.step = step  # type: ignore[method-assign]
    backend = Dying(mortal, generator, after=99)
    async with over(backend) as http:
        assert essence(await streamed(http, request)) == essence(whole)
        assert (await page(http))("mrp_request_failovers_total", reason=EngineFailed.code) == 1
    assert backend.works[1].resume.num_blocks == 1


async def test_a_replica_that_stops_in_the_midst(mortal: Generator, generator: Generator) -> None:
    request = body(max_new_tokens=400, ignore_eos=True, seed=2, temperature=0.5)
    async with over(generator) as http:
        whole = await streamed(http, request)
    async with over(Dying(mortal, generator, after=999)) as http:
        answer = asyncio.ensure_future(streamed(http, request))
        await eventually(lambda: mortal._worker.state().num_running == 1)
        await asyncio.to_thread(mortal.close)
        assert essence(await answer) == essence(whole)
        assert (await page(http))("mrp_request_failovers_total", reason="replica_stopping") == 1


async def test_a_continued_answer_that_comes_too_late_is_a_time_out(generator: Generator) -> None:
    """The replica has no time left; what was sent, and what was held back of it, is the answer."""
    resume = Resume((351, 17), 1, Stats(decoded_tokens=2))
    late = Work(
        request_id="late",
        params=Static(),
        sampling=SamplingParams(),
        max_new_tokens=9,
        timeout_s=1.0,
        arrived=Arrival.ago(2.0),
        token_ids=(1, 2, 3, 4, 5, 6),
        stop=(" w17 w",),
        resume=resume,
    )
    (last,) = [item async for item in generator.stream(late)]
    assert isinstance(last, Chunk)
    assert (last.index, last.text, last.token_ids) == (1, " w17", ())
    assert last.ending is not None
    assert (last.ending.finish_reason, last.ending.prompt_tokens, last.ending.completion_tokens) == ("timeout", 6, 2)
