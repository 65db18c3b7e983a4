"""Presets by load beside fixed plans, over a load that rises and falls.

A ramp is a row of phases. In each, so many requests are kept in the engine until enough of them were answered. A phase
takes over the requests of the phase before, so a falling load falls as requests end. A preset chooses a request's plan
when it comes, as an ingress does: by the requests in hand, this one included, with the same play. Contestants take
turns ramp by ramp and answer the same prompts. Knows no files and no command line.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from service.bench.calibration import Task
from service.bench.rounds import nobody
from service.decode.mode import DecodingMode
from service.decode.modes import Static
from service.engine import BlockEvent, Engine, GenerationRequest, SamplingParams
from service.quality.bands import at_load
from service.quality.load import SteadyLoad
from service.quality.schema import Band, Plan

#: the plan of a request, by the requests in hand
Choose = Callable[[int], DecodingMode]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A preset with its bands, or a fixed plan: `bands` is then one."""

    name: str
    bands: Sequence[Band]

    def chooser(self) -> Choose:
        """A fresh one for every ramp."""
        steady = SteadyLoad()
        return lambda requests: at_load(self.bands, steady.follow(requests)).params


def contestants(presets: Mapping[str, Sequence[Band]]) -> list[Contestant]:
    """The presets, equal ones as one; then static and the plans of their bands, unless a preset is that plan."""
    names: dict[tuple[str, ...], list[str]] = {}
    bands_of: dict[tuple[str, ...], Sequence[Band]] = {}
    for name, bands in presets.items():
        key = tuple(f"{band.plan.name} {band.up_to}" for band in bands)
        names.setdefault(key, []).append(name)
        bands_of[key] = bands
    found = [Contestant(" = ".join(same), bands_of[key]) for key, same in names.items()]
    alone = {one.bands[0].plan.name for one in found if len(one.bands) == 1}
    plans = [Plan.of(Static()), *(band.plan for one in found for band in one.bands)]
    fixed = {plan.name: [Band(mode=plan.mode, knobs=plan.knobs)] for plan in plans if plan.name not in alone}
    return [*found, *(Contestant(name, bands) for name, bands in fixed.items())]


@dataclass(frozen=True, slots=True)
class Ramp:
    """The requests kept in hand, phase by phase.

    A phase ends when `waves` requests for each of them came in it and were answered, `fewest` at least.
    """

    concurrency: Sequence[int]
    rounds: int = 5
    waves: int = 4
    fewest: int = 16
    max_new_tokens: int = 256

    def answers(self, together: int) -> int:
        """How many answers end a phase."""
        return max(self.fewest, self.waves * together)

    @property
    def total(self) -> int:
        """Answers of all phases, at least."""
        return sum(map(self.answers, self.concurrency))


@dataclass(slots=True)
class Part:
    """One phase of one ramp. `tokens`: of the blocks that were finished in it. `plans`: of the requests that came."""

    concurrency: int
    tokens: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    plans: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Run:
    """One ramp of one contestant. `right`: for each answered prompt, in order."""

    contestant: Contestant
    number: int
    parts: list[Part]
    right: dict[int, bool]

    @property
    def milliseconds_per_token(self) -> float:
        """CPU time of the whole ramp."""
        return 1e3 * sum(part.cpu_s for part in self.parts) / sum(part.tokens for part in self.parts)


def compare(
    engine: Engine,
    tasks: Sequence[Task],
    ramp: Ramp,
    rivals: Sequence[Contestant],
    after: Callable[[str], None] = nobody,
) -> Iterator[list[Run]]:
    """The runs of every round, in the order of the rivals. One ramp of few answers warms up first."""
    small = replace(ramp, concurrency=sorted(set(ramp.concurrency)), waves=1, fewest=1)
    for rival in rivals:
        _Driver(engine, tasks, small, rival).run(0)
    for number in range(ramp.rounds):
        runs = {}
        for place in range(len(rivals)):
            rival = rivals[(place + number) % len(rivals)]  # nobody always follows the same one
            runs[rival.name] = _Driver(engine, tasks, ramp, rival).run(number)
            after(f"round {number + 1} of {ramp.rounds}, {rival.name}")
        yield [runs[rival.name] for rival in rivals]


def median_ms(runs: Sequence[Run], phase: int | None = None) -> float:
    """Milliseconds of CPU time a token, the median over rounds: of one phase, or of the whole ramp."""
    if phase is None:
        return statistics.median(run.milliseconds_per_token for run in runs)
    return statistics.median(1e3 * run.parts[phase].cpu_s / run.parts[phase].tokens for run in runs)


class _Driver:
    """Sends one contestant's requests through one ramp. `place`: the next prompt."""

    def __init__(self, engine: Engine, tasks: Sequence[Task], ramp: Ramp, contestant: Contestant) -> None:
        self._engine, self._tasks, self._ramp, self._contestant = engine, tasks, ramp, contestant
        self._choose = contestant.chooser()
        self._place = 0
        self._answers: dict[int, list[int]] = {}
        self._decoded: dict[int, int] = {}
        self._right: dict[int, bool] = {}

    def run(self, number: int) -> Run:
        """The ramp. Every round has other prompts, the same for all contestants."""
        begin = self._place = number * self._ramp.total
        parts = [self._phase(together) for together in self._ramp.concurrency]
        while self._engine.has_work:  # what is still in hand is answered, and not timed
            for event in self._engine.step():
                self._take(event)
        right = {place: self._right[place] for place in range(begin, begin + self._ramp.total)}
        return Run(self._contestant, number, parts, right)

    def _phase(self, together: int) -> Part:
        part, first, enough = Part(together), self._place, self._ramp.answers(together)
        cpu, wall = time.thread_time(), time.perf_counter()
        while sum(place >= first for place in self._right) < enough:
            while len(self._answers) < together:
                self._submit(part)
            part.tokens += sum(self._take(event) for event in self._engine.step())
        part.cpu_s, part.wall_s = time.thread_time() - cpu, time.perf_counter() - wall
        return part

    def _submit(self, part: Part) -> None:
        plan = self._choose(len(self._answers) + 1)
        place, engine = self._place, self._engine
        prompt = self._tasks[place % len(self._tasks)].prompt_token_ids
        stops, most = frozenset(engine.model.eos_token_ids), self._ramp.max_new_tokens
        engine.submit(GenerationRequest(str(place), prompt, plan, SamplingParams(), most, stops))
        self._answers[place], self._decoded[place] = [], 0
        self._place += 1
        name = Plan.of(plan).name
        part.plans[name] = part.plans.get(name, 0) + 1

    def _take(self, event: BlockEvent) -> int:
        """Keeps an event. Returns the tokens that were decoded for it, end tokens included."""
        place = int(event.request_id)
        self._answers[place] += event.token_ids
        tokens = event.stats.decoded_tokens - self._decoded[place]
        self._decoded[place] = event.stats.decoded_tokens
        if event.finish_reason is not None:
            answer = tuple(self._answers.pop(place))
            self._right[place] = self._tasks[place % len(self._tasks)].is_right(answer)
        return tokens
