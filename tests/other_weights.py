"""Checkpoints of the same shape with other numbers."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.tiny import GOLDEN, GOLDEN_NAMES

FIRST = GOLDEN / GOLDEN_NAMES[0]


def other_weights(folder: Path, source: Path = FIRST, seed: int = 1) -> Path:
    """A copy of a checkpoint whose every weight has other numbers."""
    shutil.copytree(source, folder)
    noise = torch.Generator().manual_seed(seed)
    weights = load_file(folder / "model.safetensors")
    for name, weight in sorted(weights.items()):
        change = torch.randn(weight.shape, generator=noise, dtype=torch.float32) * weight.float().std()
        weights[name] = (weight.float() + 0.5 * change).to(weight.dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
