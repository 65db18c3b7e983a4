"""Tokens per second at several loads: the engine beside the plain loop, and plans of the engine beside each other.

Rounds are interleaved and ratios are of one round, because machines are shared. The plain loop serves one request at a
time, so its rate does not depend on the load; it decodes a sample of the same requests. Of plans, each has an engine of
its own, and all know the same costs of forwards. The clock is the CPU time of this thread, beside it the wall's.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from service.decode.mode import DecodingMode
from service.decode.modes import Speculative, Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine.drafting.costs import measure
from service.engine.forward.model_forward import ExecutionConfig
from service.engine.forward.runner import ModelRunner, forward_clock
from service.model import Checkpoint

if TYPE_CHECKING:
    from benchmarks.plain_loop import PlainLoop
    from service.demo import Problem
    from service.text import TextCodec

#: requests of a round that the plain loop decodes
_PLAIN_SAMPLE = 4
#: requests of a round for each that runs at once
_WAVES = 2
#: KV that each of them has room for: no more, or where its pages lie in a big memory decides which plan is faster
_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Rounds:
    """`count` interleaved rounds at each number of requests. `after` is called with each part that is done."""

    concurrencies: Sequence[int]
    count: int
    after: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class RandomWorkload:
    """Random prompts of `prompt_tokens` (from, to) and completions of `new_tokens`, nothing stops early."""

    mode: DecodingMode
    prompt_tokens: tuple[int, int] = (16, 64)
    new_tokens: int = 64
    seed: int = 0

    def longest(self, block_size: int) -> int:
        """Tokens of KV that its longest request needs."""
        return self.prompt_tokens[1] + self.new_tokens + 2 * block_size

    def requests(self, engine: Engine, count: int, round_number: int) -> list[GenerationRequest]:
        """`count` requests; the same round gives the same requests."""
        rng = random.Random(f"{self.seed}/{count}/{round_number}")
        allowed = [token for token in range(engine.model.vocab_size) if token != engine.model.mask_token_id]
        return [
            GenerationRequest(
                str(index),
                tuple(rng.choices(allowed, k=rng.randint(*self.prompt_tokens))),
                self.mode,
                max_new_tokens=self.new_tokens,
            )
            for index in range(count)
        ]


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """Medians over rounds at one concurrency, in tokens per second, and the median ratio. None without a plain loop."""

    concurrency: int
    engine: float
    plain: float | None
    ratio: float | None


def compare_with_plain_loop(
    engine: Engine, plain: PlainLoop | None, workload: RandomWorkload, rounds: Rounds
) -> Iterator[SpeedRow]:
    """Interleaved rounds of engine and plain loop, if there is one, on the same requests."""
    for concurrency in rounds.concurrencies:
        ours, theirs = list[float](), list[float]()
        for round_index in range(rounds.count):
            requests = workload.requests(engine, concurrency, round_index)
            ours.append(engine_rate(engine, requests))
            if plain is not None:
                theirs.append(_plain_rate(plain, requests[:_PLAIN_SAMPLE]))
            rounds.after(f"{concurrency} together, engine and plain loop")
        ratios = [engine / plain for engine, plain in zip(ours, theirs, strict=False)]
        yield SpeedRow(concurrency, statistics.median(ours), _median(theirs), _median(ratios))


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def engine_rate(engine: Engine, requests: list[GenerationRequest]) -> float:
    """Tokens per second of one engine over requests that are all there at once."""
    begin = time.perf_counter()
    completions = engine.generate(requests)
    return sum(len(completion.token_ids) for completion in completions) / (time.perf_counter() - begin)


def _plain_rate(plain: PlainLoop, requests: list[GenerationRequest]) -> float:
    begin = time.perf_counter()
    tokens = sum(len(plain.generate(request.prompt_token_ids, request.max_new_tokens)) for request in requests)
    return tokens / (time.perf_counter() - begin)


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts, each at the temperature, with `new_tokens` new tokens at most.

    `fewest`: requests of a round, at least.
    """

    prompts: Sequence[tuple[int, ...]]
    temperature: float = 0.0
    fewest: int = 48
    new_tokens: int = 96

    def requests(self, mode: DecodingMode, numbers: range, stops: frozenset[int]) -> list[GenerationRequest]:
        """A request for each number, the first prompt again behind the last. Plans get the same seed for a number."""
        prompts = [self.prompts[index % len(self.prompts)] for index in numbers]
        sampling = [SamplingParams(self.temperature, seed=index) for index in numbers]
        return [
            GenerationRequest(f"{index}", prompt, mode, drawn, max_new_tokens=self.new_tokens, stop_token_ids=stops)
            for index, prompt, drawn in zip(numbers, prompts, sampling, strict=True)
        ]


def encoded(codec: TextCodec, problems: Sequence[Problem]) -> list[tuple[int, ...]]:
    """The problems' prompts as chats in token ids."""
    return [tuple(codec.encode_message(problem.prompt)) for problem in problems]


@dataclass(slots=True)
class Sample:
    """One plan in one round."""

    tokens: int
    forwards: int
    cpu_s: float
    wall_s: float


@dataclass(slots=True)
class PlanAtLoad:
    """A plan at a number of concurrent requests."""

    mode: DecodingMode
    concurrency: int
    samples: list[Sample] = field(default_factory=list)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens up to the end token per denoise or verify forward of a request."""
        return sum(sample.tokens for sample in self.samples) / sum(sample.forwards for sample in self.samples)

    @property
    def milliseconds_per_token(self) -> float:
        return statistics.median(1e3 * sample.cpu_s / sample.tokens for sample in self.samples)

    def times_faster(self, static: PlanAtLoad) -> tuple[float, float]:
        """Static's time a token over the plan's, medians over rounds: by CPU time and by the wall's."""
        pairs = list(zip(static.samples, self.samples, strict=True))
        cpu = [(slow.cpu_s / slow.tokens) / (fast.cpu_s / fast.tokens) for slow, fast in pairs]
        return statistics.median(cpu), statistics.median(self.ratios(static))

    def ratios(self, other: PlanAtLoad) -> list[float]:
        """The other plan's time a token over this plan's, by the wall's clock, round by round."""
        pairs = zip(other.samples, self.samples, strict=True)
        return [(slow.wall_s / slow.tokens) / (fast.wall_s / fast.tokens) for slow, fast in pairs]


def plans_at_load(has_mrp: bool) -> list[DecodingMode]:
    """Static first, then auto, then drafts of a fixed size."""
    plans: list[DecodingMode] = [Static(), Speculative("auto"), *(Speculative(0, states) for states in (1, 2, 4, 8))]
    if has_mrp:
        plans += [Speculative(steps) for steps in (1, 2, 4)]
        plans += [Speculative(steps, states) for steps in (1, 2) for states in (4, 8)]
    return plans


def parts(plans: Sequence[DecodingMode], rounds: Rounds) -> int:
    """The number of measurements: each plan in each round."""
    return len(plans) * len(rounds.concurrencies) * (rounds.count + 1)


def compare_at_loads(
    checkpoint: Checkpoint,
    workload: Workload,
    plans: Sequence[DecodingMode],
    rounds: Rounds,
    base: EngineConfig | None = None,
) -> Iterator[list[PlanAtLoad]]:
    """For each number of requests all plans, in their order. One round more warms up.

    `rounds.after` is told of every plan in every round: `parts` says how often. `base`: how the engines work beside
    their sizes.
    """
    limits = base or EngineConfig()
    runner = ModelRunner(checkpoint, limits.max_rows)
    ahead, clock = limits.goes_ahead(checkpoint.device.type) and runner.keeps_states, forward_clock(checkpoint.device)
    costs = measure(runner, limits.max_rows, checkpoint.mrp is not None, clock, ahead=ahead)
    del runner  # its cache is large
    stops = frozenset(checkpoint.config.eos_token_ids)
    for concurrency in rounds.concurrencies:
        tokens = concurrency * _TOKENS
        config = replace(limits, max_running=concurrency, kv_cache_tokens=tokens, prefix_cache=False)
        rows = [PlanAtLoad(mode, concurrency) for mode in plans]
        handed = EngineDeps(costs=costs, runner=_shared(checkpoint, config))
        turns = deque((Engine(checkpoint, config, deps=handed), row) for row in rows)
        for round_index in range(rounds.count + 1):
            count = max(workload.fewest, _WAVES * concurrency)
            numbers = range(round_index * count, (round_index + 1) * count)
            for engine, row in turns:
                row.samples.append(_sample(engine, workload.requests(row.mode, numbers, stops)))
                turn = f"round {round_index} of {rounds.count}" if round_index else "to warm up"
                rounds.after(f"{concurrency} together, {turn}, {row.mode.name}")
            turns.rotate(1)  # nobody always follows the same one
        for row in rows:
            del row.samples[0]
        yield rows


def _shared(checkpoint: Checkpoint, config: EngineConfig) -> Callable[..., ModelRunner]:
    """One runner for engines that take turns: each gives all its pages back before the next one begins."""
    pages = config.kv_cache_tokens // checkpoint.config.block_size
    candidates = config.candidates(checkpoint.config.vocab_size)
    runner = ModelRunner(checkpoint, pages, None, candidates, ExecutionConfig(config.attention, config.cuda_graphs))
    runner.prepare(config.max_rows)
    return lambda *_: runner


def _sample(engine: Engine, requests: Sequence[GenerationRequest]) -> Sample:
    cpu, wall = time.thread_time(), time.perf_counter()
    stats = [completion.stats for completion in engine.generate(requests)]
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    forwards = sum(stat.forwards.denoise + stat.forwards.verify for stat in stats)
    return Sample(sum(stat.decoded_tokens for stat in stats), forwards, cpu, wall)
