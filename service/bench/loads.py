"""Plans beside each other at several loads: what `mrp_steps: "auto"` gains on `static` and on drafts of a fixed size.

Every plan has an engine of its own, in which at most so many requests run at once. All have one cache and know the
same costs of forwards. A round decodes two for each place, so it ends with fewer. Rounds are interleaved and ratios are
of one round. The clock is the CPU time of this thread, which with one torch thread is the forwards' and the policies'
own, whoever else wants the core; beside it the wall's. Knows no files and no command line.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from service.bench.rounds import Rounds
from service.decode.mode import DecodingMode
from service.decode.modes import Speculative, Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest, SamplingParams
from service.engine.drafting.costs import measure
from service.engine.forward.model_forward import ExecutionConfig
from service.engine.forward.runner import CheckpointRunner, forward_clock
from service.model import Checkpoint

#: requests of a round for each that runs at once
_WAVES = 2
#: KV that each of them has room for: no more, or where its pages lie in a big memory decides which plan is faster
_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked: prompts, each at the temperature, with so many new tokens at most.

    `fewest`: requests of a round, at least.
    """

    prompts: Sequence[tuple[int, ...]]
    temperature: float = 0.0
    fewest: int = 48
    new_tokens: int = 96

    def requests(self, params: DecodingMode, places: range, stops: frozenset[int]) -> list[GenerationRequest]:
        """Those at the places, the first prompt again behind the last. A place's seed is the same for every plan."""
        prompts = [self.prompts[place % len(self.prompts)] for place in places]
        sampling = [SamplingParams(self.temperature, seed=place) for place in places]
        return [
            GenerationRequest(f"{place}", prompt, params, drawn, max_new_tokens=self.new_tokens, stop_token_ids=stops)
            for place, prompt, drawn in zip(places, prompts, sampling, strict=True)
        ]


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

    params: DecodingMode
    concurrency: int
    samples: list[Sample] = field(default_factory=list)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens up to the end token per denoise or verify forward of a request."""
        return sum(one.tokens for one in self.samples) / sum(one.forwards for one in self.samples)

    @property
    def milliseconds_per_token(self) -> float:
        """Median, CPU time."""
        return statistics.median(1e3 * one.cpu_s / one.tokens for one in self.samples)

    def times_faster(self, static: PlanAtLoad) -> tuple[float, float]:
        """Static's time a token over the plan's, medians over rounds: by CPU time and by the wall's."""
        pairs = list(zip(static.samples, self.samples, strict=True))
        cpu = [(other.cpu_s / other.tokens) / (own.cpu_s / own.tokens) for other, own in pairs]
        wall = [(other.wall_s / other.tokens) / (own.wall_s / own.tokens) for other, own in pairs]
        return statistics.median(cpu), statistics.median(wall)


def plans_at_load(has_mrp: bool) -> list[DecodingMode]:
    """Static first, then auto, then drafts of a fixed size."""
    plans: list[DecodingMode] = [Static(), Speculative("auto"), *(Speculative(0, states) for states in (1, 2, 4, 8))]
    if has_mrp:
        plans += [Speculative(steps) for steps in (1, 2, 4)]
        plans += [Speculative(steps, states) for steps in (1, 2) for states in (4, 8)]
    return plans


def parts(plans: Sequence[DecodingMode], rounds: Rounds) -> int:
    """How many plans are measured, each round for itself."""
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
    runner = CheckpointRunner(checkpoint, limits.max_rows)
    costs = measure(runner, limits.max_rows, checkpoint.mrp is not None, forward_clock(checkpoint.device))
    del runner  # its cache is large
    stops = frozenset(checkpoint.config.eos_token_ids)
    for concurrency in rounds.concurrencies:
        tokens = concurrency * _TOKENS
        config = replace(limits, max_running=concurrency, kv_cache_tokens=tokens, prefix_cache=False)
        rows = [PlanAtLoad(params, concurrency) for params in plans]
        handed = EngineDeps(costs=costs, runner=_shared(checkpoint, config))
        turns = deque((Engine(checkpoint, config, deps=handed), row) for row in rows)
        for number in range(rounds.count + 1):
            count = max(workload.fewest, _WAVES * concurrency)
            places = range(number * count, (number + 1) * count)
            for engine, row in turns:
                row.samples.append(_sample(engine, workload.requests(row.params, places, stops)))
                turn = f"round {number} of {rounds.count}" if number else "to warm up"
                rounds.after(f"{concurrency} together, {turn}, {row.params.mode}")
            turns.rotate(1)  # nobody always follows the same one
        for row in rows:
            del row.samples[0]
        yield rows


def _shared(checkpoint: Checkpoint, config: EngineConfig) -> Callable[..., CheckpointRunner]:
    """One runner for engines that take turns: each gives all its pages back before the next one begins."""
    pages = config.kv_cache_tokens // checkpoint.config.block_size
    candidates = config.candidates(checkpoint.config.vocab_size)
    runner = CheckpointRunner(
        checkpoint, pages, None, candidates, ExecutionConfig(config.attention, config.cuda_graphs)
    )
    return lambda *_: runner


def _sample(engine: Engine, requests: Sequence[GenerationRequest]) -> Sample:
    cpu, wall = time.thread_time(), time.perf_counter()
    stats = [completion.stats for completion in engine.generate(requests)]
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    forwards = sum(one.forwards.denoise + one.forwards.verify for one in stats)
    return Sample(sum(one.decoded_tokens for one in stats), forwards, cpu, wall)
