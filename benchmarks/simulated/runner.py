"""A runner in the place of `ModelRunner`: the networks of `network.py`, by the clock of `clock.py`."""

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from msgspec.structs import replace

from benchmarks.simulated.clock import SimulatedClock
from benchmarks.simulated.network import SimulatedNetwork, SimulatedWeights, output_of
from service.decode.block import MASKED
from service.decode.policy import Prediction
from service.decode.rules import JointlyAbove
from service.engine.drafting.costs import Curve
from service.engine.forward.model_forward import Network
from service.engine.forward.pending import Pending
from service.engine.forward.replays import MAX_FORWARDS, can_replay
from service.engine.forward.rows import Row
from service.engine.memory_plan import GRAPH_ROWS, ForwardMemory
from service.model import Checkpoint

#: the time of a forward in milliseconds, by its rows
Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Milliseconds of the host. The values are an H100's host's."""

    launch: float = 0.55  # of a forward: its plan, its tables and its launch; and for each of its rows
    launch_row: float = 0.008
    sampler: float = 0.0  # of a forward of the backbone that is no replay: the launches of its sampler
    read: float = 0.2  # of a forward's results, and for each row
    read_row: float = 0.005
    step: float = 0.35  # of the engine beside its forwards: scheduler, events, metrics, messages
    request: float = 0.010  # of a policy that reveals and asks
    state: float = 0.012  # of the verification of one more state
    search: float = 0.06  # of a search whose drafts are verified
    draft: float = 0.025  # and of each verified state that it has brought
    wait: float = 0.0  # more of each step in turns


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """Milliseconds of the device. `page`: the time in which a row of the backbone reads one page.

    `graphs`: whether forwards are filled up to the sizes of graphs, and steps begin ahead. `replays`: whether MRP's
    forwards for drafts may be replays, with one launch and one wait. `noise`: as of `SimulatedClock`.
    """

    backbone: Points
    mrp: Points
    page: float = 0.0
    graphs: bool = True
    replays: bool = True
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Graphs:
    """The numbers of rows for which there are graphs."""

    sizes: tuple[int, ...] = GRAPH_ROWS


@dataclass(slots=True)
class SimulatedModel:
    """The part of `ModelForward` that an engine uses."""

    num_pages: int
    graphs: Graphs | None
    eager_forwards: int = 0

    def release_cache(self) -> None: ...

    def restore_cache(self) -> None: ...


@dataclass(slots=True)
class BegunForwards:
    """The forwards that have begun. `in_turns`: those of the backbone for which the host had read the last one."""

    backbone: int = 0
    in_turns: int = 0
    mrp: int = 0


@dataclass(slots=True, weakref_slot=True)
class _Reading:
    """The results of a forward. Called, the host waits for the device, and then works for `milliseconds`."""

    clock: SimulatedClock
    end: int
    milliseconds: float
    predictions: list[Prediction]
    is_read: bool = field(default=False)

    def __call__(self) -> list[Prediction]:
        if not self.is_read:
            self.is_read = True
            self.clock.wait(self.end)
            self.clock.work(self.milliseconds)
        return self.predictions


class SimulatedRunner:
    """The part of `ModelRunner` that an engine and `costs.measure` use."""

    keeps_states = True

    def __init__(
        self,
        times: tuple[HostTimes, DeviceTimes],
        clock: SimulatedClock,
        weights: SimulatedWeights,
        checkpoint: Checkpoint,
        num_pages: int,
    ) -> None:
        self._host, self._device = times
        self._clock, self._network = clock, SimulatedNetwork(weights)
        self.config, self.device = checkpoint.config, checkpoint.device
        self.model = SimulatedModel(num_pages, Graphs() if self._device.graphs else None)
        sizes = GRAPH_ROWS if self._device.graphs else ()
        self._curves = {"backbone": Curve(self._device.backbone, sizes), "mrp": Curve(self._device.mrp, sizes)}
        self.forwards = BegunForwards()
        self._last: weakref.ref[_Reading] | None = None  # the last forward of the backbone, unless it was dropped

    def prepare(self, max_rows: int) -> None:
        """There is nothing to warm up."""

    def measure_bytes(self, max_rows: int) -> ForwardMemory:  # noqa: ARG002 - it has no memory
        return ForwardMemory(0, 0)

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        """As `ModelRunner.begin`."""
        if network == "mrp":
            self.forwards.mrp += 1
            reading = self._begin("mrp", rows, self._host.request * len(rows))
        else:
            self.forwards.backbone += 1
            self._wait_in_turns()
            reading = self._begin("backbone", rows, self._draft(rows))
            self._last = weakref.ref(reading)
        return _pending(reading)

    def begin_replays(self, rows: Sequence[Row], counts: Sequence[int]) -> list[Pending] | None:
        """As `ModelRunner.begin_replays`, of MRP alone: a forward of the backbone is one launch in `begin`."""
        if not self._device.replays or rows[0].anchor is None or not can_replay(rows, counts):
            return None
        host, clock, readings = self._host, self._clock, list[_Reading]()
        clock.work(host.launch + host.launch_row * len(rows))
        rows = self._network.with_states(rows)
        for number in range(min(max(counts), MAX_FORWARDS)):
            self.forwards.mrp += 1
            end, predictions = clock.compute(self._curves["mrp"].filled(len(rows))), self._network.compute(rows)
            readings.append(_Reading(clock, end, host.request * len(rows), predictions))
            rows = [
                _following(row, prediction, goes_on=number + 1 < count)
                for row, prediction, count in zip(rows, predictions, counts, strict=True)
            ]
        for reading in readings:  # one copy brings all results
            reading.end = end
        readings[0].milliseconds += self._read(rows)
        return [_pending(reading) for reading in readings]

    def _begin(self, network: Network, rows: Sequence[Row], policies: float) -> _Reading:
        """`policies`: milliseconds of the policies, once they have the results."""
        host, device = self._host, self._device
        self._clock.work(host.launch + host.launch_row * len(rows))
        milliseconds = self._curves[network].filled(len(rows))
        if network == "backbone" and device.page:
            milliseconds += device.page * sum([row.index for row in rows])
        end = self._clock.compute(milliseconds)
        return _Reading(self._clock, end, self._read(rows) + policies, self._network.compute(rows))

    def _read(self, rows: Sequence[Row]) -> float:
        return self._host.read + self._host.read_row * len(rows)

    def _draft(self, rows: Sequence[Row]) -> float:
        """The host has searched for the drafts among the rows. -> milliseconds of the policies that read the rows."""
        host = self._host
        states = Counter([id(row.pages) for row in rows if row.kind == "verify"])
        requests = {id(row.pages) for row in rows if row.sampling is not None}
        self._clock.work(host.search * len(states) + host.draft * states.total())
        if host.sampler and (any(row.drafts for row in rows) or not can_replay(rows, [1] * len(rows))):
            self._clock.work(host.sampler)
        return host.request * len(requests) + host.state * states.total()

    def _wait_in_turns(self) -> None:
        last = self._last() if self._last is not None else None
        if last is None or last.is_read:
            self.forwards.in_turns += 1
            self._clock.work(self._host.wait)


def _following(row: Row, prediction: Prediction, *, goes_on: bool) -> Row:
    """The row of the next replay: of the state after the rule's picks. A row that does not go on stays as it is.

    A gate bounds the product of all confidences since the backbone's forward. Without a pick the backbone is next.
    """
    state, rule = output_of(prediction.handle).states[prediction.handle.row], row.rule
    if not goes_on or row.sampling is None or MASKED not in state.tokens or rule is None or state == row.state:
        return row
    if isinstance(rule, JointlyAbove):
        rule = JointlyAbove(rule.threshold / prod([pick.confidence for pick in rule(prediction)]))
    return replace(row, state=state, anchor=prediction.handle, rule=rule)


def _pending(reading: _Reading) -> Pending:
    return Pending([prediction.handle for prediction in reading.predictions], reading)
