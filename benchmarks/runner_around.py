"""A runner around another one, for benchmarks that count what the engine asks of it."""

from __future__ import annotations

from collections.abc import Sequence

from service.decode.policy import Prediction
from service.engine.forward.model_forward import Network
from service.engine.forward.rows import Row
from service.engine.forward.runner import ModelRunner, Pending


class RunnerAround:
    """A `ModelRunner` that does what another one does. A subclass overrides `begin`."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self.model = runner, runner.model
        self.config, self.device = runner.config, runner.device

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        """Begins a forward."""
        return self._runner.begin(network, rows)

    def prepare(self, max_rows: int) -> None:
        """Warms up."""
        self._runner.prepare(max_rows)

    def measure_bytes(self, max_rows: int) -> int:
        """The bytes of graphs and of the largest forward."""
        return self._runner.measure_bytes(max_rows)
