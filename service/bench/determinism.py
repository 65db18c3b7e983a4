"""How often a request gets another answer than it got alone, and what it costs that it never does.

Floating point rounds by the shapes of a batch, so a near tie may tip; `EngineConfig.deterministic` fixes the shapes.
Both are counted on the same requests. Knows no files and no command line.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from service.bench.speed import Workload, engine_rate
from service.decode.params import Direct, Dynamic, ModeParams, Remask, Speculative, Static
from service.engine import Engine, GenerationRequest, SamplingParams

TEMPERATURES = (0.0, 0.7, 1.2)
_MOST_TOGETHER = 32


@dataclass(frozen=True, slots=True)
class Differences:
    """Answers by tokens.

    `differing` of `requests` were others in a random batch than alone; `broken` of `drafted` speculative ones, alone or
    in a batch, others than static alone.
    """

    requests: int
    differing: int
    drafted: int
    broken: int


def random_prompts(engine: Engine, count: int) -> list[tuple[int, ...]]:
    """Random tokens, up to 64; the same in every run."""
    rng = random.Random(0)
    allowed = [token for token in range(engine.model.vocab_size) if token != engine.model.mask_token_id]
    return [tuple(rng.choices(allowed, k=rng.randint(1, 64))) for _ in range(count)]


def count_differences(engine: Engine, prompts: Sequence[tuple[int, ...]], new_tokens: int = 64) -> Differences:
    """Every prompt once in each temperature, in turn in all modes the checkpoint has, alone and in random batches."""
    rng = random.Random(0)
    asked = _requests(engine, prompts, new_tokens)
    alone = {one.request_id: engine.generate([one])[0].token_ids for one in asked}
    mixed = _in_batches(engine, asked, rng)
    static = [one for one in asked if isinstance(one.params, Static)] if engine.model.mrp else []
    drafts = [replace(one, params=Speculative(1 + n % engine.model.block_size)) for n, one in enumerate(static)]
    answers = [(one.request_id, engine.generate([one])[0].token_ids) for one in drafts]
    answers += _in_batches(engine, drafts, rng).items()
    return Differences(
        requests=len(asked),
        differing=sum(alone[name] != tokens for name, tokens in mixed.items()),
        drafted=len(answers),
        broken=sum(alone[name] != tokens for name, tokens in answers),
    )


def _requests(engine: Engine, prompts: Sequence[tuple[int, ...]], new_tokens: int) -> list[GenerationRequest]:
    modes: list[ModeParams] = [Static(), Dynamic(0.5)]
    if engine.model.mrp:
        modes += [Direct(2), Speculative(2), Remask(0.5)]
    stop = frozenset(engine.model.eos_token_ids)
    return [
        GenerationRequest(
            f"{number}/{temperature}",
            prompt,
            modes[(number + turn) % len(modes)],
            SamplingParams(temperature, seed=number),
            new_tokens,
            stop,
        )
        for number, prompt in enumerate(prompts)
        for turn, temperature in enumerate(TEMPERATURES)
    ]


def _in_batches(engine: Engine, requests: list[GenerationRequest], rng: random.Random) -> dict[str, tuple[int, ...]]:
    answers, rest = dict[str, tuple[int, ...]](), rng.sample(requests, len(requests))
    while rest:
        size = rng.randint(2, _MOST_TOGETHER)
        answers |= {done.request_id: done.token_ids for done in engine.generate(rest[:size])}
        rest = rest[size:]
    return answers


@dataclass(frozen=True, slots=True)
class Price:
    """Medians over rounds at one concurrency: tokens per second of both engines, and of their ratio."""

    mode: str
    concurrency: int
    free: float
    fixed: float
    ratio: float


def prices(
    engines: tuple[Engine, Engine], workloads: Sequence[Workload], concurrencies: Sequence[int], rounds: int
) -> Iterator[Price]:
    """Interleaved rounds of the engine without and with `deterministic` on the same requests."""
    for workload in workloads:
        for concurrency in concurrencies:
            rates = [
                [engine_rate(engine, workload.requests(engine, concurrency, number)) for engine in engines]
                for number in range(rounds)
            ]
            free, fixed = (statistics.median(column) for column in zip(*rates, strict=True))
            ratio = statistics.median(after / before for before, after in rates)
            yield Price(workload.params.mode, concurrency, free, fixed, ratio)
