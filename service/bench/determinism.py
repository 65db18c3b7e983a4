"""How often a request gets another answer than it got alone, and what it costs that it never does.

Floating point rounds by the shapes of a batch, so a near tie may tip; `EngineConfig.deterministic` fixes the shapes.
Both are counted on the same requests. Knows no files and no command line.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from service.bench.rounds import Rounds
from service.bench.speed import Workload, engine_rate
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Speculative, Static
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


def answers_to(engine: Engine, prompts: Sequence[tuple[int, ...]]) -> int:
    """How many answers `count_differences` asks for."""
    asked = _requests(engine, prompts, 1)
    return 2 * (len(asked) + len(_drafted(engine, asked)))


def count_differences(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    new_tokens: int = 64,
    answered: Callable[[int], None] = lambda _: None,
) -> Differences:
    """Every prompt once in each temperature, in turn in all modes the checkpoint has, alone and in random batches.

    `answered` is told of every answer or batch of them: how many they were.
    """
    ask = _Asking(engine, answered)
    asked = _requests(engine, prompts, new_tokens)
    alone, mixed = ask.alone(asked), ask.in_batches(asked)
    drafts = _drafted(engine, asked)
    answers = [*ask.alone(drafts).items(), *ask.in_batches(drafts).items()]
    return Differences(
        requests=len(asked),
        differing=sum(alone[name] != tokens for name, tokens in mixed.items()),
        drafted=len(answers),
        broken=sum(alone[name] != tokens for name, tokens in answers),
    )


def _requests(engine: Engine, prompts: Sequence[tuple[int, ...]], new_tokens: int) -> list[GenerationRequest]:
    modes: list[DecodingMode] = [Static(), Dynamic(0.5)]
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


def _drafted(engine: Engine, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
    """Those of static again, with drafts of all lengths; none without MRP."""
    static = [one for one in requests if isinstance(one.params, Static)] if engine.model.mrp else []
    return [replace(one, params=Speculative(1 + n % engine.model.block_size)) for n, one in enumerate(static)]


class _Asking:
    """Answers of an engine by the request's id."""

    def __init__(self, engine: Engine, answered: Callable[[int], None]) -> None:
        self._engine, self._answered, self._rng = engine, answered, random.Random(0)

    def alone(self, requests: Sequence[GenerationRequest]) -> dict[str, tuple[int, ...]]:
        """One after the other."""
        return {name: tokens for one in requests for name, tokens in self._together([one])}

    def in_batches(self, requests: Sequence[GenerationRequest]) -> dict[str, tuple[int, ...]]:
        """In batches of random sizes and neighbours."""
        answers, rest = dict[str, tuple[int, ...]](), self._rng.sample(requests, len(requests))
        while rest:
            size = self._rng.randint(2, _MOST_TOGETHER)
            answers |= self._together(rest[:size])
            rest = rest[size:]
        return answers

    def _together(self, requests: list[GenerationRequest]) -> list[tuple[str, tuple[int, ...]]]:
        answers = [(done.request_id, done.token_ids) for done in self._engine.generate(requests)]
        self._answered(len(answers))
        return answers


@dataclass(frozen=True, slots=True)
class Price:
    """Medians over rounds at one concurrency: tokens per second of both engines, and of their ratio."""

    mode: str
    concurrency: int
    free: float
    fixed: float
    ratio: float


def prices(engines: tuple[Engine, Engine], workloads: Sequence[Workload], rounds: Rounds) -> Iterator[Price]:
    """Interleaved rounds of the engine without and with `deterministic` on the same requests."""
    for workload in workloads:
        for concurrency in rounds.concurrencies:
            rates = []
            for number in range(rounds.count):
                rates.append([engine_rate(one, workload.requests(one, concurrency, number)) for one in engines])
                rounds.after(f"{concurrency} together, {workload.params.mode}")
            free, fixed = (statistics.median(column) for column in zip(*rates, strict=True))
            ratio = statistics.median(after / before for before, after in rates)
            yield Price(workload.params.mode, concurrency, free, fixed, ratio)
