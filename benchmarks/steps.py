"""How long a step takes at a number of rows: the backbone's forward, MRP's forward, the host's work, and the floor.

With V(r) the time of a forward over r rows relative to one row each for r requests, and m the time of an MRP forward, K
drafts pay when tokens per forward > V(K+1) + K m. The host's work is the time of a step outside the engine's runner.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from msgspec.structs import replace

from benchmarks.floor import forward_need
from benchmarks.machine import Rates
from service.decode.block import MASKED, Block
from service.decode.mode import DecodingMode
from service.decode.modes import Static
from service.decode.policy import Prediction
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.forward.model_forward import ExecutionConfig, Network
from service.engine.forward.pending import Pending, done
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner, forward_clock
from service.engine.request import SamplingParams
from service.model import Checkpoint
from service.model.attention import AUTO, page_bytes

#: KV that a bench may hold, in bytes: sequences share pages where theirs together would be more
_MOST_KV = 2**30
#: the costs of forwards for `auto`: nothing is measured for it here
HOST_COSTS = StepCosts(Curve(((1, 1.0), (256, 2.0))), Curve(((1, 0.1), (256, 0.2))))

#: rows of a request in a step, at most: all of them are in every forward
_ROWS = 8


@dataclass(frozen=True, slots=True)
class Platform:
    """The rates of a device, and the attention that is used on it."""

    rates: Rates
    attention: str = AUTO


@dataclass(frozen=True, slots=True)
class StepTime:
    """Medians in milliseconds at one number of rows, each of a sequence of its own behind `context` tokens.

    `backbone`: a forward with its readings. `host`: the rest of a step with a request for each row. `floor`: the
    least that the device could take for the forward, `bound` by memory or arithmetic. `mrp`: None without a module.
    """

    rows: int
    context: int
    backbone: float
    host: float
    floor: float
    bound: str
    mrp: float | None

    @property
    def step(self) -> float:
        return self.backbone + self.host

    @property
    def ratio(self) -> float:
        """Step over floor: 1 is as fast as the device allows."""
        return self.step / self.floor


def step_times(
    checkpoint: Checkpoint, counts: Sequence[int], prefix_tokens: int, rounds: int, platform: Platform
) -> Iterator[StepTime]:
    """Forwards over rows of masks behind a prefix (in tokens, cut to whole blocks); logits read at every position."""
    size = checkpoint.config.block_size
    prefix = prefix_tokens // size
    most_pages = max(1, _MOST_KV // page_bytes(checkpoint.config, checkpoint.dtype.itemsize))
    pages = max(1, min(prefix * max(counts), most_pages))
    runner = ModelRunner(checkpoint, num_pages=pages, execution=ExecutionConfig(platform.attention))
    state = Block((MASKED,) * size)
    for count in counts:
        tables = [[(row * prefix + page) % runner.model.num_pages for page in range(prefix)] for row in range(count)]
        rows = [Row(state, prefix, of_row, writes_kv=False, sampling=SamplingParams()) for of_row in tables]
        readings = _run(runner, "backbone", rows)
        anchored = [replace(row, anchor=reading.handle) for row, reading in zip(rows, readings, strict=True)]
        backbone = _median(partial(_run, runner, "backbone", rows), checkpoint, rounds)
        mrp = _median(partial(_run, runner, "mrp", anchored), checkpoint, rounds) if checkpoint.mrp else None
        need = forward_need(checkpoint.config, count, prefix * size, checkpoint.dtype.itemsize)
        host = host_milliseconds(checkpoint, count, rounds)
        yield StepTime(
            count, prefix * size, backbone, host, 1e3 * need.seconds(platform.rates), need.bound(platform.rates), mrp
        )


def _run(runner: ModelRunner, network: Network, rows: Sequence[Row]) -> Sequence[Prediction]:
    return runner.begin(network, rows)()


def _median(run: Callable[[], object], checkpoint: Checkpoint, rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        run()
        if checkpoint.device.type == "cuda":
            torch.cuda.synchronize(checkpoint.device)
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[1:])


class _TimedRunner:
    """A `ModelRunner` that computes each forward at once. `seconds`: spent in forwards."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self._clock = runner, forward_clock(runner.device)
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending:
        began = self._clock()
        pending = done(self._runner.begin(network, rows)())
        self.seconds += self._clock() - began
        return pending


def host_milliseconds(checkpoint: Checkpoint, requests: int, steps: int, mode: DecodingMode | None = None) -> float:
    """Median over steps in which `requests` requests decode short prompts, static if no mode is named.

    With one CPU thread it is CPU time, so other programs do not count.
    """
    size, timed = checkpoint.config.block_size, list[_TimedRunner]()

    def runner(*arguments: Any) -> ModelRunner:
        timed.append(_TimedRunner(ModelRunner(*arguments)))
        return cast(ModelRunner, timed[0])

    new_tokens = (2 + -(-steps // size)) * size
    config = EngineConfig(
        max_running=requests,
        max_rows=max(256, _ROWS * requests),
        kv_cache_tokens=requests * (new_tokens + 2 * size),
        prefix_cache=False,
    )
    engine = Engine(checkpoint, config, deps=EngineDeps(costs=HOST_COSTS, runner=runner))
    for index in range(requests):
        engine.submit(GenerationRequest(str(index), (index % 2,), mode or Static(), max_new_tokens=new_tokens))
    times, clock = list[float](), forward_clock(checkpoint.device)
    while len(times) <= steps and (len(times) < 2 or engine.state().num_running == requests):
        begin, inside = clock(), timed[0].seconds
        engine.step()
        times.append(1e3 * (clock() - begin - timed[0].seconds + inside))
    return statistics.median(times[1:])
