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
        self._runner, self.config, self.device = runner, runner.config, runner.device

    @property
    def num_pages(self) -> int:
        """Pages of its cache."""
        return self._runner.num_pages

    @property
    def graph_sizes(self) -> Sequence[int]:
        """The sizes of its graphs."""
        return self._runner.graph_sizes

    def begin(self, network: Network, rows: Sequence[Row]) -> Pending[Prediction]:
        """Begins a forward."""
        return self._runner.begin(network, rows)

    def prepare(self, max_rows: int) -> None:
        """Warms up."""
        self._runner.prepare(max_rows)

    def measure_bytes(self, max_rows: int) -> int:
        """The bytes of graphs and of the largest forward."""
        return self._runner.measure_bytes(max_rows)

    def pop_eager_forwards(self) -> int:
        """The number of forwards without a graph since the last call."""
        return self._runner.pop_eager_forwards()

    def release_cache(self) -> None:
        """Gives the memory of the cache back."""
        self._runner.release_cache()

    def restore_cache(self) -> None:
        """Takes the memory of the cache again."""
        self._runner.restore_cache()
