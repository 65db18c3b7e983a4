"""Learning while serving, turn by turn: doubles stand for the service and for the learner's arithmetic."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from service.engine.request import ForwardCounts, Stats
from service.errors import WeightsConflict, WeightsRefused
from service.messages.finished import FinishedRequest, FinishedRequests
from service.messages.wire import Weights
from service.telemetry.metrics import Registry
from training import online_loop
from training.online_loop import OnlineLoop

BASE = Weights(0, "demo", "demo")
STATS = Stats(ForwardCounts(denoise=1, verify=4), drafts_accepted=3, mrp_steps=2, mrp_version=0)


def finished(stats: Stats = STATS, owner: str = "ann") -> FinishedRequest:
    return FinishedRequest((1, 2, 3, 4), 2, owner, stats)


@dataclass
class Service:
    """The replicas. `refusal`: why they take no weights."""

    parts: list[FinishedRequests] = field(default_factory=lambda: [FinishedRequests((finished(),), BASE, 0)])
    refusal: Any = None
    published: list[Path] = field(default_factory=list)

    async def take_finished(self) -> list[FinishedRequests]:
        return self.parts

    async def publish(self, folder: Path, version: int) -> Weights:
        assert [file.name for file in folder.iterdir()] == ["mrp.safetensors"]
        self.published.append(folder)
        if self.refusal:
            raise self.refusal
        weights = Weights(version, str(folder), "demo", ("demo", str(folder)), version, partial=True)
        self.serve(weights)
        return weights

    def serve(self, weights: Weights) -> None:
        self.parts = [replace(part, weights=weights) for part in self.parts]


class Learner:
    """Each turn has two updates, unless it `is_idle`. What it has learnt is better if `is_better`."""

    def __init__(self, weights: Weights, clock: "Clock") -> None:
        self.weights, self._clock = weights, clock
        self.samples: list[Any] = []
        self.updates = self.adopted = self.resets = 0
        self.is_better, self.is_idle = True, False

    def add(self, samples: Iterable[Any]) -> None:
        self.samples.extend(samples)

    @property
    def is_ready(self) -> bool:
        return bool(self.samples) and not self.is_idle

    def update(self) -> None:
        self.updates += 1
        self._clock.now += online_loop._TURN_S / 2

    def judge(self) -> Any:
        return SimpleNamespace(served=0.5, candidate=0.75, is_better=self.is_better)

    def write(self, folder: Path) -> None:
        (folder / "mrp.safetensors").touch()
        self._clock.now += 1

    def adopt(self) -> None:
        self.adopted += 1

    def reset(self) -> None:
        self.resets += 1


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Run:
    """A loop with its doubles."""

    loop: OnlineLoop
    service: Service
    learners: list[Learner]
    registry: Registry
    folder: Path
    clock: Clock

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await self.loop.turn()
            self.clock.now += online_loop._YIELD * online_loop._TURN_S

    async def until_judged(self) -> None:
        await self.turns(online_loop._UPDATES // 2)

    def rest(self) -> None:
        self.clock.now += online_loop._REST

    @property
    def page(self) -> str:
        return "".join(family.samples for family in self.registry.families("t"))

    def versions(self) -> list[str]:
        return sorted(path.name.split("-")[1] for path in self.folder.iterdir())


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(online_loop, "_yield_to_others", lambda: None)
    monkeypatch.setattr(online_loop, "_sample", lambda request: request)
    service, clock, registry, learners = Service(), Clock(), Registry("trainer"), list[Learner]()

    def load(weights: Weights) -> Learner:
        learners.append(Learner(weights, clock))
        return learners[-1]

    loop = OnlineLoop(service, load, tmp_path, registry, clock)  # type: ignore[arg-type]
    yield Run(loop, service, learners, registry, tmp_path, clock)
    loop.close()


async def test_nothing_is_loaded_before_a_replica_answers(run):
    run.service.parts = []
    await run.turns(3)
    assert run.learners == []


async def test_the_requests_of_all_replicas_come_to_one_learner(run):
    run.service.parts = [FinishedRequests((finished(owner=name),), BASE, 0) for name in ("ann", "bob")]
    await run.turns(1)
    [learner] = run.learners
    assert [sample.owner for sample in learner.samples] == ["ann", "bob"]
    assert learner.weights == BASE
    assert learner.updates == 2


async def test_no_update_begins_while_a_request_waits_in_an_engine(run):
    run.service.parts.append(FinishedRequests((), BASE, 1))
    await run.turns(online_loop._UPDATES)
    assert run.learners[0].samples  # they are not lost
    assert run.learners[0].updates == 0
    assert run.service.published == []


async def test_updates_pause_while_requests_come(run):
    await run.loop.turn()
    run.clock.now += online_loop._YIELD * online_loop._TURN_S - 0.01
    await run.loop.turn()
    [learner] = run.learners
    assert (len(learner.samples), learner.updates) == (2, 2)
    run.clock.now += 0.01
    await run.loop.turn()
    assert learner.updates == 4


async def test_updates_do_not_pause_in_an_idle_service(run):
    await run.loop.turn()
    run.service.parts = [FinishedRequests((), BASE, 0)]
    await run.loop.turn()
    assert run.learners[0].updates == 4


async def test_a_better_version_is_published_and_learning_goes_on_from_it(run):
    await run.until_judged()
    [folder] = run.service.published
    assert folder.parent == run.folder
    assert run.versions() == ["1"]
    await run.turns(1)
    [learner] = run.learners
    assert learner.adopted == 1
    assert 'outcome="published",replica="t"} 1.0' in run.page


async def test_no_module_is_published_that_is_not_better(run):
    await run.turns(1)
    run.learners[0].is_better = False
    await run.until_judged()
    assert run.service.published == []
    assert run.versions() == []
    assert 'mrp_online_served_accepted_per_forward{replica="t"} 0.5' in run.page
    assert 'mrp_online_trained_accepted_per_forward{replica="t"} 0.75' in run.page


async def test_versions_come_rarely_by_what_the_last_one_took(run):
    """Writing and publishing took a second of the clock. The next one comes 50 s later."""
    await run.until_judged()
    await run.until_judged()
    assert len(run.service.published) == 1
    run.rest()
    await run.until_judged()
    assert len(run.service.published) == 2


async def test_only_the_served_folder_and_the_one_before_stay(run):
    for _ in range(4):
        await run.until_judged()
        run.rest()
    assert len(run.service.published) == 4
    assert run.versions() == ["3", "4"]


@pytest.mark.parametrize("refusal", [WeightsRefused("its weight is NaN"), WeightsConflict("version 7 came in before")])
async def test_after_a_refusal_it_learns_anew_from_the_served_weights(run, refusal):
    run.service.refusal = refusal
    await run.until_judged()
    await run.turns(1)
    [learner] = run.learners
    assert (learner.adopted, learner.resets) == (0, 1)
    assert 'outcome="refused",replica="t"} 1.0' in run.page


async def test_an_operators_update_begins_learning_anew(run):
    await run.turns(online_loop._UPDATES // 2 - 1)
    theirs = Weights(5, "step-5", "demo")
    run.service.parts = [FinishedRequests((), theirs, 0), *run.service.parts]  # the other replica is behind
    await run.turns(1)
    assert [learner.weights for learner in run.learners] == [BASE, theirs]
    assert run.service.published == []  # the old learner's updates do not count
    await run.until_judged()
    assert run.service.published[0].name.startswith("version-6-")


async def test_drafts_are_counted_by_mrps_version_and_old_versions_end(run):
    other = structs.replace(STATS, mrp_steps=0, mrp_version=1)  # the backbone's own drafts
    run.service.parts = [FinishedRequests((finished(), finished(), finished(other)), BASE, 1)]
    await run.turns(1)
    assert 'mrp_online_accepted_tokens_total{replica="t",version="0"} 6.0' in run.page
    assert 'mrp_online_forwards_total{replica="t",version="0"} 10.0' in run.page
    assert 'version="1"' not in run.page
    assert 'mrp_online_requests_total{replica="t"} 3.0' in run.page
    newer = [finished(structs.replace(STATS, mrp_version=version)) for version in range(1, 12)]
    run.service.parts = [FinishedRequests(tuple(newer), BASE, 1)]
    await run.turns(1)
    series = [line for line in run.page.splitlines() if line.startswith("mrp_online_forwards_total")]
    assert {line.split('"')[3] for line in series} == {str(version) for version in range(4, 12)}
