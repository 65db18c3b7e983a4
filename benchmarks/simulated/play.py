"""Plays plans in worlds: the engine decodes the users' requests by the clock."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import cast

from benchmarks.simulated.clock import SimulatedClock
from benchmarks.simulated.network import SimulatedWeights
from benchmarks.simulated.runner import BegunForwards, SimulatedRunner
from benchmarks.simulated.users import Users
from benchmarks.simulated.worlds import Load, World
from service.decode.mode import DecodingMode
from service.decode.modes import Static
from service.demo import CHECKPOINT
from service.engine import Engine, EngineConfig, EngineDeps
from service.engine.drafting.costs import StepCosts, measure
from service.engine.forward.runner import ModelRunner
from service.engine.request import MeasuredMode
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.settings import defaults

MAX_ROWS = 512
#: the pages of a runner that is measured; the most tokens of a text
_NUM_PAGES, _MAX_POSITIONS = 100_000, 16384
#: the most steps in which no block ends, where prompts are stored; more of them are a fault of the simulation
_MAX_QUIET_STEPS = 5_000


@dataclass(frozen=True, slots=True)
class Part:
    """The tokens of one load, and its seconds. `plans`: of `auto`, by step."""

    tokens: int
    seconds: float
    plans: Sequence[int]

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def steps_to_plan(self) -> int:
        """The steps before the first one with the plan that most steps of its second half have."""
        [(plan, _)] = Counter(self.plans[len(self.plans) // 2 :]).most_common(1)
        return self.plans.index(plan)


@dataclass(slots=True)
class Played:
    """One plan in one world. `parts`: its loads, in their order. `answers`: by request, also those not at their end."""

    forwards: BegunForwards
    parts: list[Part] = field(default_factory=list)
    answers: dict[str, list[int]] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens a second over all loads."""
        return sum(part.tokens for part in self.parts) / sum(part.seconds for part in self.parts)

    def has_answers_of(self, other: "Played") -> bool:
        """Whether all answers are equal as far as both go."""
        pairs = [(tokens, other.answers[name]) for name, tokens in self.answers.items() if name in other.answers]
        return all(first[: len(second)] == second[: len(first)] for first, second in pairs)


@lru_cache
def demo(block_size: int) -> Checkpoint:
    """The demo's checkpoint. Its networks compute nothing here, so its texts may be long."""
    checkpoint = load_checkpoint(CHECKPOINT, LoadOptions(block_size=block_size))
    return replace(checkpoint, config=replace(checkpoint.config, max_positions=_MAX_POSITIONS))


def prices(world: World) -> StepCosts:
    """The table of prices that the product measures on the clock, before there are requests: forwards alone move it.

    The host's time of drafts is that of the world, since pure Python moves no clock.
    """
    idle = replace(world.host, request=0.0, state=0.0, wait=0.0)
    clock, weights = SimulatedClock(), SimulatedWeights(world.block_size, world.acceptance)
    runner = SimulatedRunner((idle, world.device), clock, weights, demo(world.block_size), _NUM_PAGES)
    table = measure(cast(ModelRunner, runner), MAX_ROWS, has_mrp=True, clock=clock, ahead=world.device.graphs)
    return replace(table, draft=1e-3 * (idle.draft + idle.search / 2))  # two drafts a search, as measured


class Game:
    """A world in which plans are played one after the other, each from its beginning. Equal seeds give equal clocks."""

    def __init__(self, world: World, seed: int = 0) -> None:
        self.world, self._seed = world, seed
        self._prices = prices(world)
        self._weights = SimulatedWeights(world.block_size, world.acceptance)

    def play(self, mode: DecodingMode, plans: tuple[MeasuredMode, ...] = ()) -> Played:
        """`plans`: those of a preset; the engine chooses one of them for each request, in the place of `mode`."""
        return _Play(self.world, Users(self.world.traffic, mode, plans), self._prices, self._weights, self._seed).run()


class _Play:
    """One plan in one world."""

    def __init__(self, world: World, users: Users, table: StepCosts, weights: SimulatedWeights, seed: int) -> None:
        self._world, self._users = world, users
        self._clock, runners = SimulatedClock(world.device.noise, seed), list[SimulatedRunner]()

        def runner(checkpoint: Checkpoint, num_pages: int, *_: object) -> ModelRunner:
            times = world.host, world.device
            runners.append(SimulatedRunner(times, self._clock, weights, checkpoint, num_pages))
            return cast(ModelRunner, runners[0])

        deps = EngineDeps(clock=self._clock, costs=table, runner=runner)
        self._engine = Engine(demo(world.block_size), _config(world), deps=deps)
        self._played = Played(runners[0].forwards)

    def run(self) -> Played:
        for load in self._world.loads:
            self._played.parts.append(self._run(load))
        return self._played

    def _run(self, load: Load) -> Part:
        clock, users, begin = self._clock, self._users, self._clock()
        users.set_number(load.users, begin)
        tokens = answers = steps = quiet = 0
        plans = list[int]()
        while answers < load.answers if load.answers else steps < load.steps:
            for request in users.requests(clock()):
                self._engine.submit(request)
            if not self._engine.has_work:
                clock.sleep_until(users.next_request)
                continue
            clock.work(self._world.host.step)
            events = self._engine.step()
            quiet = 0 if events else quiet + 1
            if quiet > _MAX_QUIET_STEPS:
                raise AssertionError(f"no block has ended in {quiet} steps")
            for event in events:
                if event.error is not None:
                    raise event.error
                tokens += len(event.token_ids)
                self._played.answers.setdefault(event.request_id, []).extend(event.token_ids)
                if event.finish_reason is not None:
                    answers += 1
                    users.answered(clock())
            steps += 1
            plans.append(self._engine._planner.plan)  # noqa: SLF001 - no user needs it
        return Part(tokens, clock() - begin, plans)


def _config(world: World) -> EngineConfig:
    device, size = world.device, world.block_size
    tokens = (world.max_users + 2) * (world.max_tokens + 2 * size)
    return EngineConfig(
        max_running=world.max_users,
        max_rows=MAX_ROWS,
        kv_cache_tokens=tokens + world.traffic.prefixes * world.traffic.prefix_tokens,
        prefix_cache=world.traffic.prefixes > 0,
        async_scheduling=device.graphs,
        max_prefill_tokens=defaults.PREFILL_TOKENS_GPU if device.graphs else None,
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A plan beside `static` and the fixed plans of its world."""

    static: Played
    fixed: Mapping[DecodingMode, Played]
    plan: Played

    @property
    def times_static(self) -> float:
        return times_faster(self.plan.parts, [part.rate for part in self.static.parts])

    @property
    def times_static_by_load(self) -> list[float]:
        return [part.rate / static.rate for part, static in zip(self.plan.parts, self.static.parts, strict=True)]

    @property
    def times_best(self) -> float:
        """Relative to `static` or a fixed plan, at each load the fastest there."""
        by_load = zip(*(played.parts for played in (self.static, *self.fixed.values())), strict=True)
        return times_faster(self.plan.parts, [max(part.rate for part in parts) for parts in by_load])

    @property
    def same_answers(self) -> bool:
        return self.plan.has_answers_of(self.static)


def times_faster(parts: Sequence[Part], rates: Sequence[float]) -> float:
    """The time of the same tokens at these rates, tokens a second at each load, divided by the time that they took.

    So a load at which a plan is slow does not weigh more for that plan, where loads last some number of steps.
    """
    expected = sum(part.tokens / rate for part, rate in zip(parts, rates, strict=True))
    return expected / sum(part.seconds for part in parts)


def compare(world: World, plans: Sequence[DecodingMode], seed: int = 0) -> list[Comparison]:
    """Each plan beside `static` and the world's fixed plans."""
    game = Game(world, seed)
    static = game.play(Static())
    fixed = {mode: game.play(mode) for mode in world.fixed}
    return [Comparison(static, fixed, game.play(plan)) for plan in plans]


def compare_preset(world: World, plans: Sequence[MeasuredMode], seed: int = 0) -> Comparison:
    """The engine's choice among a preset's plans beside `static` and each of the plans."""
    game = Game(world, seed)
    fixed = {plan.mode: game.play(plan.mode) for plan in plans}
    return Comparison(game.play(Static()), fixed, game.play(plans[0].mode, tuple(plans)))
