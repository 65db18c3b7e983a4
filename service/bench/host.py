"""What a step costs beside its forwards: scheduling, the policies' decisions, the bookkeeping of events.

The engine's runner is wrapped in one that counts the time inside it. A runner's readings come back to the CPU, so on
any device what is left is time in which no forward runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from service.decode.mode import DecodingMode
from service.decode.modes import Static
from service.decode.policy import Prediction
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine.drafting.costs import Curve, StepCosts
from service.engine.forward.model_forward import Network
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner, ModelRunner, Pending, done, forward_clock
from service.model import Checkpoint, ModelConfig

#: what `auto` believes forwards cost here: nothing is measured for it
HOST_COSTS = StepCosts(Curve(((1, 1.0), (256, 2.0))), Curve(((1, 0.1), (256, 0.2))))

#: rows of a request in a step, at most: all of them are in every forward
_ROWS = 8


class _Counted:
    """A runner, and the seconds spent in it."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self._clock = runner, forward_clock(runner.device)
        self.config: ModelConfig = runner.config
        self.device: torch.device = runner.device
        self.seconds = 0.0

    @property
    def num_pages(self) -> int:
        """Pages of its cache."""
        return self._runner.num_pages

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        """A forward, computed at once."""
        began = self._clock()
        predictions = self._runner.begin(network, rows)()
        self.seconds += self._clock() - began
        return done(predictions)


def host_milliseconds(checkpoint: Checkpoint, requests: int, steps: int, params: DecodingMode | None = None) -> float:
    """Median over steps in which so many requests decode short prompts, static if no mode is named.

    With one CPU thread it is CPU time, so other programs do not count.
    """
    size, counted = checkpoint.config.block_size, list[_Counted]()

    def runner(*arguments: Any) -> ModelRunner:
        counted.append(_Counted(CheckpointRunner(*arguments)))
        return counted[0]

    new_tokens = (2 + -(-steps // size)) * size
    config = EngineConfig(
        max_running=requests,
        max_rows=max(256, _ROWS * requests),
        kv_cache_tokens=requests * (new_tokens + 2 * size),
        prefix_cache=False,
    )
    engine = Engine(checkpoint, config, deps=EngineDeps(costs=HOST_COSTS, runner=runner))
    for number in range(requests):
        engine.submit(GenerationRequest(str(number), (number % 2,), params or Static(), max_new_tokens=new_tokens))
    times, clock = list[float](), forward_clock(checkpoint.device)
    while len(times) <= steps and (len(times) < 2 or engine.state().num_running == requests):
        begin, inside = clock(), counted[0].seconds
        engine.step()
        times.append(1e3 * (clock() - begin - counted[0].seconds + inside))
    return statistics.median(times[1:])
