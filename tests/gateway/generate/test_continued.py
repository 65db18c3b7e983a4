"""Answers begun by one replica and ended by another, cut after every block: equal to the undisturbed ones."""

import asyncio
import itertools
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest
from msgspec.structs import replace

from service.decode.modes import Static
from service.engine.request import SamplingParams, Stats
from service.errors import EngineFailed, ReplicaLost
from service.ipc.data import Arrival
from service.messages.wire import Chunk, Ending, Failure, ReplicaRequest, ReplicaStream, Resume
from service.replica.replica import Replica
from service.routing.failover import FailoverPolicy
from tests.gateway.doubles import LosesFirst, pipeline, uncharged
from tests.gateway.engines import failing
from tests.gateway.generate.helpers import PROMPT, ask, body, essence, streamed
from tests.gateway.helpers import over, page, replica_request_of
from tests.gateway.local import LocalBackend
from tests.gathered import gathered

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
    {"mode": "speculative", "mrp_steps": 2, "margin": 0.3},
    {"mode": "speculative", "mrp_steps": 2, "max_drafts": 4, "verify": "sequential", "margin": 0.3},
]
#: prompts that do not fill their last block (of 8), that have no whole block, and that fill it
HOW, PROMPTS = ("partial", "short", "whole"), ([*PROMPT, 1, 2, 3], [5, 6, 7], PROMPT)


class Lost(LocalBackend):
    """The first attempt gives the first recorded items and is lost. The next attempt goes to a real replica."""

    def __init__(self, recorded: list[Chunk | Ending], after: int, replica: Replica) -> None:
        super().__init__(replica)
        self.recorded = recorded[:after]

    async def stream(self, request: ReplicaRequest) -> ReplicaStream:
        if self.requests:
            async with aclosing(super().stream(request)) as items:
                async for item in items:
                    yield item
            return
        self.requests.append(request)
        for item in self.recorded:
            yield item
        raise ReplicaLost("killed", retry_after=1.0)


async def items_of(backend: LocalBackend, request: ReplicaRequest) -> tuple[list[Chunk | Ending], list[str]]:
    """The items of an answer, and why attempts were made again."""
    again: list[str] = []
    policy = FailoverPolicy(3, lambda error: again.append(error.code))
    async with aclosing(pipeline(backend, policy).stream(request, uncharged())) as items:
        return [item async for item in items], again


def timeless(item: Chunk | Ending) -> Chunk | Ending:
    """An item without the parts that differ between two runs: times and prefilled tokens."""
    forwards = replace(item.stats.forwards, prefill=0, mrp=0)
    times = {"queue_s": 0.0, "prefill_s": None, "first_block_s": None, "total_s": 0.0}
    item = replace(item, stats=replace(item.stats, forwards=forwards, cached_tokens=0, **times))  # type: ignore[arg-type]
    return replace(item, ending=timeless(item.ending)) if isinstance(item, Chunk) and item.ending else item


async def assert_same_after_every_block(first: Replica, second: Replica, request: Mapping[str, Any]) -> int:
    """Loses the first replica after every block in turn. Returns the number of the answer's chunks."""
    replica_request = replica_request_of(first.status().card, request)
    whole, again = await items_of(LocalBackend(first), replica_request)
    *chunks, ending = whole
    assert isinstance(ending, Ending)
    assert again == []
    for after in range(len(chunks)):
        backend = Lost(whole, after, second)
        continued, again = await items_of(backend, replica_request)
        assert list(map(timeless, continued)) == list(map(timeless, whole)), after
        assert again == ["replica_lost"]
        assert backend.requests[1].resume.num_blocks == after
        stats = continued[-1].stats
        assert stats.forwards.prefill <= 2
        assert stats.first_block_s is not None
        assert stats.queue_s <= stats.first_block_s <= stats.total_s
    return len(chunks)


@pytest.fixture
def replicas(generator: Replica, other: Replica) -> tuple[Replica, Replica]:
    return generator, other


@pytest.mark.parametrize(
    ("mode", "prompt", "temperature"),
    [
        pytest.param(
            mode,
            prompt,
            temperature,
            id=f"{'-'.join(map(str, mode.values()))}-{how}",
            marks=() if how == HOW[number % 3] else pytest.mark.slow,
        )
        for number, mode in enumerate(MODES)
        for how, prompt, temperature in zip(HOW, PROMPTS, (0.9, 0.9, 0), strict=True)
    ],
)
async def test_every_mode_continues(replicas, mode, temperature, prompt):
    request = body(prompt_token_ids=prompt, max_new_tokens=30, temperature=temperature, seed=3, ignore_eos=True)
    assert (
        await assert_same_after_every_block(*replicas, request | mode | {"return_trace": True, "return_step_map": True})
        >= 4
    )


@pytest.mark.parametrize("mode", MODES[1:7:2], ids=str)
async def test_penalties_and_bad_words_continue(replicas, mode):
    """The tokens that other replicas have decoded are the answer's, not the prompt's."""
    fields = {"repetition_penalty": 1.3, "frequency_penalty": 0.9, "presence_penalty": -0.4, "min_tokens": 20}
    fields |= {"bad_words": ["w456", "w351 w112", "w7"], "logit_bias": {"8": 1.5}, "min_p": 0.01}
    request = body(prompt_token_ids=PROMPTS[0], max_new_tokens=30, temperature=0.9, seed=3)
    assert await assert_same_after_every_block(*replicas, request | mode | fields) >= 4


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(mode, id=mode["mode"], marks=() if mode["mode"] == "dynamic" else pytest.mark.slow)
        for mode in MODES[::2]
    ],
)
async def test_a_stop_token_ends_a_continued_answer(replicas, mode):
    request = body(max_new_tokens=40, temperature=0.9, seed=5, ignore_eos=True) | mode
    items, _ = await items_of(LocalBackend(replicas[0]), replica_request_of(replicas[0].status().card, request))
    tokens = [token for chunk in items[:-1] for token in chunk.token_ids]
    for token in sorted(set(tokens[9:30]))[:2]:
        await assert_same_after_every_block(*replicas, request | {"stop_token_ids": [token]})


@pytest.mark.parametrize(
    "number", [pytest.param(0, marks=pytest.mark.slow), 1, pytest.param(2, marks=pytest.mark.slow)]
)
async def test_stop_texts_over_the_borders_of_blocks(replicas, number):
    """A stop text that begins in one block and ends in the next, or that only begins. `number`: of the border."""
    request = body(prompt_token_ids=None, prompt="w17 w4 w5", max_new_tokens=32, temperature=0.9, seed=1)
    request["ignore_eos"] = True
    items, _ = await items_of(LocalBackend(replicas[0]), replica_request_of(replicas[0].status().card, request))
    chunks = [item for item in items if isinstance(item, Chunk)]
    names = "".join(chunk.text for chunk in chunks).split()
    borders = list(itertools.accumulate(len(chunk.token_ids) for chunk in chunks))[:-1]
    assert len(borders) >= 3
    spanning = " ".join(names[borders[number] - 2 : borders[number] + 1])
    for stop in (spanning, spanning + "?"):
        await assert_same_after_every_block(*replicas, request | {"stop": stop})


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
async def test_a_character_may_be_cut_by_the_loss(make_generator, byte_checkpoint, bytewise, seed):
    request = body(temperature=3, seed=seed, max_new_tokens=48, ignore_eos=True)
    await assert_same_after_every_block(bytewise, make_generator("r1", byte_checkpoint), request)


async def test_a_stream_over_http_continues(replicas):
    request = body(max_new_tokens=30, temperature=0.9, seed=3, mode="remask", threshold=0.3, return_trace=True)
    async with over(replicas[1]) as http:
        whole = await streamed(http, request)
    backend = LosesFirst(*replicas, after=2)
    async with over(backend) as http:
        continued = await streamed(http, request)
        assert (await page(http))("mrp_request_failovers_total", reason="replica_lost") == 1
    assert essence(continued) == essence(whole)
    assert backend.requests[1].resume.num_blocks == 2
    stats = continued["stats"]
    assert stats["queue_ms"] <= stats["first_block_ms"] <= stats["total_ms"]


async def test_a_long_whole_answer_continues_after_the_last_blocks_that_came(replicas):
    sampling = {"temperature": 0.9, "seed": 3, "ignore_eos": True, "stop": "w7 w7 w7"}
    request = body(max_new_tokens=34 * replicas[0].status().card.block_size, return_trace=True, **sampling)
    async with over(replicas[1]) as http:
        whole = await ask(http, request)
    backend = LosesFirst(*replicas, after=2)
    async with over(backend) as http:
        assert essence(await ask(http, request)) == essence(whole)
    resume = backend.requests[1].resume
    assert resume.num_blocks == 32
    assert list(resume.token_ids) == whole["token_ids"][: len(resume.token_ids)]


async def test_an_engine_that_fails_in_the_midst(make_generator, generator):
    """The process does not die; the replica itself reports that it cannot continue."""
    mortal = make_generator("mortal", deps=failing(after=12))
    request = body(max_new_tokens=30, seed=1)
    async with over(generator) as http:
        whole = await streamed(http, request)
    backend = LosesFirst(mortal, generator, after=99)
    async with over(backend) as http:
        assert essence(await streamed(http, request)) == essence(whole)
        assert (await page(http))("mrp_request_failovers_total", reason=EngineFailed.code) == 1
    assert backend.requests[1].resume.num_blocks == 1


async def refuses(replica: Replica) -> None:
    """Returns when a replica takes no requests any more."""
    for number in itertools.count():
        probe = replace(replica_request_of(replica.status().card, body()), request_id=f"probe {number}")
        task = asyncio.ensure_future(gathered(replica.stream(probe)))
        done, _ = await asyncio.wait({task}, timeout=0.01)
        task.cancel()
        if done:
            assert isinstance(task.result(), Failure)
            return


async def test_a_replica_that_stops_in_the_midst(make_generator, gate, generator):
    mortal = make_generator("mortal", deps=gate.deps)
    request = body(max_new_tokens=30, ignore_eos=True, seed=2, temperature=0.5)
    async with over(generator) as http:
        whole = await streamed(http, request)
    backend = LosesFirst(mortal, generator, after=999)
    async with over(backend) as http:
        answer = asyncio.ensure_future(streamed(http, request))
        gate.let(12)
        await gate.holds(before=13)
        closing = asyncio.ensure_future(asyncio.to_thread(mortal.close))
        await refuses(mortal)
        gate.release()
        await closing
        assert essence(await answer) == essence(whole)
        assert (await page(http))("mrp_request_failovers_total", reason="replica_stopping") == 1
    assert backend.requests[1].resume.num_blocks == 1


async def test_a_continued_answer_that_comes_too_late_is_a_time_out(generator):
    """The replica has no time left. The answer is what was sent, and what was gate back of it."""
    resume = Resume((351, 17), 1, Stats(decoded_tokens=2))
    late = ReplicaRequest(
        request_id="late",
        mode=Static(),
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
