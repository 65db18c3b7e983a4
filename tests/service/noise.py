"""What MRP learns is noise here, and always counts as better. Serve's process of the trainer imports this.

Every second version that a learner writes has a NaN. Versions come as fast as updates of replicas do.
"""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from service.messages.wire import Weights
from training import online_loop
from training.deployment import TrainerDeployment


class Noise:
    """A learner. It learns as soon as it has a sample."""

    def __init__(self, model: Path, seed: int) -> None:
        self._model, self._seed, self._writes, self.is_ready = model, seed, 0, False

    def add(self, samples: Iterable[Any]) -> None:
        self.is_ready |= any(True for _ in samples)

    def update(self) -> None:
        pass

    def judge(self) -> Any:
        return SimpleNamespace(served=0.0, candidate=1.0, is_better=True)

    def write(self, folder: Path) -> None:
        import torch
        from safetensors.torch import load_file, save_file

        self._writes += 1
        torch.manual_seed(self._seed)
        weights = load_file(self._model / "model.safetensors")
        mrp = {name: weight for name, weight in weights.items() if name.startswith("mrp_modules.")}
        noisy = {name: weight + torch.randn_like(weight) * weight.std() for name, weight in mrp.items()}
        if self._writes % 2 == 0:
            next(iter(noisy.values())).view(-1)[0] = float("nan")
        save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})

    def adopt(self) -> None:
        pass

    def reset(self) -> None:
        """After the version with a NaN. The next one is whole."""


class NoiseTrainer(TrainerDeployment):
    """The real deployment with that learner."""

    def load(self, weights: Weights) -> Any:
        online_loop._REST = 0.0
        return Noise(Path(self._settings.model), weights.version)
