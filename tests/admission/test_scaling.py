"""Replicas follow the load: real admission, policy, delays and bounds of Serve; simulated replicas and time."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve import autoscaling_policy
from ray.serve.config import AutoscalingContext

from service.app import build
from service.rayserve.scaling import GENERATOR, WANTED, policy
from service.settings.settings import Settings
from tests.admission.overload import Lengths, Service
from tests.admission.virtual import now, run
from tests.rayserve.built import config_of, deployments

#: blocks a second of a replica's slot; blocks of a request; seconds until a new replica decodes
PACE, BLOCKS, STARTS_S = 2.0, 16, 8.0
RUNNING = 8
#: the first minutes, in which the rate becomes known, and Serve's delay after them
SETTLED_S = 500


@dataclass
class Cluster:
    """A service with Serve's controller. `target`: the replicas that it should have."""

    service: Service
    config: Any
    slots: int
    target: int
    ready: int
    targets: list[tuple[float, int]] = field(default_factory=list)

    @classmethod
    def make(cls, **settings: Any) -> Cluster:
        args = Settings(max_num_seqs=RUNNING, max_waiting=100_000, **settings)
        config = config_of(deployments(build(args))[0]).autoscaling_config
        target = config.initial_replicas or config.min_replicas
        lengths = Lengths(lambda _: BLOCKS)
        service = Service(
            0, PACE, lengths, max_waiting=100_000, max_num_seqs=RUNNING, api_server_count=args.api_server_count
        )
        service.shrink(target * args.slots)
        return cls(service, config, args.slots, target, target)

    @property
    def capacity(self) -> float:
        """Requests a second of one replica."""
        return self.slots * PACE / BLOCKS

    async def control(self) -> None:
        """The controller's loop."""
        decide = autoscaling_policy._apply_app_level_autoscaling_config(policy)
        state: dict[str, Any] = {}
        while True:
            contexts = self._contexts(state)
            decisions, states = decide(contexts)
            state = states["generator"]
            bounded = max(self.config.min_replicas, min(self.config.max_replicas, math.ceil(decisions["generator"])))
            if bounded != self.target:
                self.targets.append((now(), bounded))
                change = (lambda n=bounded: self.resize(n)) if bounded > self.target else None
                self.target = bounded
                if change:
                    asyncio.get_running_loop().call_later(STARTS_S, change)
                else:
                    self.resize(bounded)
            await asyncio.sleep(1.0)

    def resize(self, replicas: int) -> None:
        if replicas <= self.target:
            self.ready = replicas
            self.service.shrink(replicas * self.slots)

    def _contexts(self, state: dict[str, Any]) -> dict[str, AutoscalingContext]:
        controllers = self.service.controllers
        reports = {
            f"i{n}": [SimpleNamespace(timestamp=now(), value=controller.replicas_wanted)]
            for n, controller in enumerate(controllers)
        }
        return {
            "generator": context(GENERATOR, self.ready, self.target, self.config, state),
            "ingress": context("Ingress", len(controllers), len(controllers), None, {}, {WANTED: reports}),
        }

    async def load(self, replicas: float, seconds: float, evenly: bool = True) -> None:
        """Requests for so many replicas' worth of work."""
        rate, tasks = replicas * self.capacity, []
        if not evenly:
            tasks = await self.service.poisson(rate, seconds)
        else:
            for _ in range(round(rate * seconds)):
                tasks.append(asyncio.ensure_future(self.service.request()))
                await asyncio.sleep(1 / rate)
        self.requests = tasks


def context(
    name: str, running: int, target: int, config: Any, state: dict[str, Any], report: Any = None
) -> AutoscalingContext:
    return AutoscalingContext(
        deployment_id=name, deployment_name=name, app_name="mrp", current_num_replicas=running,
        target_num_replicas=target, running_replicas=[f"i{n}" for n in range(running)], total_num_requests=0.0,
        total_queued_requests=0.0, aggregated_metrics=None, raw_metrics=report, capacity_adjusted_min_replicas=0,
        capacity_adjusted_max_replicas=99, policy_state=state, last_scale_up_time=None, last_scale_down_time=None,
        current_time=now(), config=config,
    )  # type: ignore[arg-type]  # fmt: skip


def scaled(monkeypatch: pytest.MonkeyPatch, script: Any, **settings: Any) -> Cluster:
    """A cluster after its script has run. Serve's delays use the same clock."""
    monkeypatch.setattr(autoscaling_policy, "time", SimpleNamespace(time=now))

    async def main() -> Cluster:
        cluster = Cluster.make(**settings)
        control = asyncio.ensure_future(cluster.control())
        await script(cluster)
        control.cancel()
        return cluster

    return run(main())


@pytest.mark.parametrize(
    ("load", "settles", "evenly"),  # replicas' worth of work, and the replicas that it needs
    [
        *((0.3, 1, True), (1.5, 2, True), (0.9, 2, False)),
        *(pytest.param(2.7, 4, evenly, marks=pytest.mark.slow) for evenly in (True, False)),
    ],
)
def test_a_constant_load_settles(monkeypatch: pytest.MonkeyPatch, load: float, settles: int, evenly: bool) -> None:
    async def half_an_hour(cluster: Cluster) -> None:
        await cluster.load(load, 1800, evenly)

    cluster = scaled(monkeypatch, half_an_hour, num_replicas=1, max_replicas=8)
    after = [target for at, target in cluster.targets if at > SETTLED_S]
    if evenly:
        assert after == [], cluster.targets
        assert cluster.target == settles
    else:  # a replica more or less for some minutes when many or few have come at once
        assert len(after) <= 5, cluster.targets
        assert {*after, cluster.target} <= {settles - 1, settles, settles + 1, settles + 2}
    later = [client for client in cluster.service.log.clients if client.arrived > SETTLED_S]
    assert all(client.attempts == 1 for client in later)
    waits = sorted(client.waited_s for client in later if client.waited_s is not None)
    assert waits[int(0.99 * len(waits))] < 5.0


def test_a_burst_scales_up_at_once_and_down_after_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    async def burst(cluster: Cluster) -> None:
        await cluster.load(0.5, 300)
        cluster.targets.append((now(), cluster.target))
        await cluster.load(3.0, 60)
        await asyncio.sleep(600)

    cluster = scaled(monkeypatch, burst, num_replicas=1, max_replicas=4)
    (start, before), *after = cluster.targets
    ups = [(at - start, target) for at, target in after if at < start + 90]
    assert before == 1
    assert ups[0][0] < 15
    assert max(target for _, target in ups) >= 3
    downs = [at - start for at, target in after if target < 3]
    assert downs[0] > 60 + 300
    assert cluster.target == 1
    assert all(client.ended is not None for client in cluster.service.log.clients)


def test_a_service_scales_to_zero_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep_and_wake(cluster: Cluster) -> None:
        await cluster.service.request()
        await asyncio.sleep(600)
        assert (cluster.target, cluster.ready) == (0, 0)
        client = await cluster.service.request()
        waits.append(client.waited_s or 0.0)
        await asyncio.sleep(600)

    cluster = scaled(monkeypatch, sleep_and_wake, num_replicas=0, max_replicas=2)
    assert waits[0] == pytest.approx(STARTS_S, abs=1.5)
    assert [target for _, target in cluster.targets] == [0, 1, 0]
