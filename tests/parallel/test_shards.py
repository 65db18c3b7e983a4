"""What each rank loads: together all of every divided weight, and whole what is not divided."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from service.errors import CheckpointError, SettingsError
from service.model import Checkpoint, LoadOptions, load_checkpoint, parse_config
from service.model.config import Shard
from tests.tiny import EXPERTS, EXPERTS_NAME, GOLDEN, GOLDEN_NAMES, LLADA2, LLADA2_NAME, tiny_config

NAMES = (*GOLDEN_NAMES, EXPERTS_NAME, LLADA2_NAME)


def shards(folder: Path, size: int, dtype: torch.dtype = torch.float32) -> list[Checkpoint]:
    return [load_checkpoint(folder, LoadOptions(dtype, shard=Shard(rank, size))) for rank in range(size)]


def modules_of(checkpoint: Checkpoint) -> list[torch.nn.Module]:
    return [checkpoint.backbone] + ([checkpoint.mrp] if checkpoint.mrp else [])


def feed_forward(module: torch.nn.Module, layer: int, x: torch.Tensor) -> torch.Tensor:
    return module.layers[layer].mlp(x)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_a_feed_forward_add_up(name: str, size: int) -> None:
    exact = torch.float64
    whole, parts = load_checkpoint(GOLDEN / name, LoadOptions(exact)), shards(GOLDEN / name, size, exact)
    x = torch.randn(3, 4, whole.config.hidden_size, generator=torch.Generator().manual_seed(1), dtype=exact)
    for number, module in enumerate(modules_of(whole)):
        for layer in range(len(module.layers)):
            total = sum(feed_forward(modules_of(part)[number], layer, x) for part in parts)
            torch.testing.assert_close(total, feed_forward(module, layer, x), rtol=0, atol=1e-12)


def test_experts_that_are_published_in_one_weight_are_divided_alike(tmp_path: Path) -> None:
    """transformers 5 writes them so: all gates of an expert before all its ups."""
    folder = Path(shutil.copytree(GOLDEN / EXPERTS_NAME, tmp_path / "fused"))
    weights = load_file(folder / "model.safetensors")
    experts = load_checkpoint(GOLDEN / EXPERTS_NAME).backbone
    for layer in (1, 2):
        for name in [name for name in weights if name.startswith(f"model.layers.{layer}.mlp.experts.")]:
            del weights[name]
        for leaf in ("gate_up_proj", "down_proj"):
            name = f"layers.{layer}.mlp.experts.{leaf}"
            weights[f"model.{name}"] = experts.get_parameter(name).clone()
    save_file(weights, folder / "model.safetensors")
    for fused, single in zip(shards(folder, 2), shards(GOLDEN / EXPERTS_NAME, 2), strict=True):
        for name, weight in single.backbone.named_parameters():
            assert torch.equal(weight, fused.backbone.get_parameter(name)), name


def test_a_weight_of_the_wrong_shape_is_named_by_the_whole_shape(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / GOLDEN_NAMES[0], tmp_path / "wrong"))
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    weights[name] = weights[name][:, :64].clone()
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"down_proj.weight' has shape \[64, 64\], config.json implies \[64, 128\]"
    ):
        shards(folder, 2)


@pytest.mark.parametrize(
    ("size", "changes", "allowed"),
    [
        (3, {}, "1, 2, 4"),
        (8, {}, "1, 2, 4"),
        (2, {"intermediate_size": 45}, "1"),
        (4, EXPERTS | {"moe_intermediate_size": 6}, "1, 2"),
        (4, LLADA2 | {"moe_intermediate_size": 6}, "1, 2"),
    ],
)
def test_a_size_that_does_not_divide_the_model_is_refused(size: int, changes: dict[str, int], allowed: str) -> None:
    with pytest.raises(
        SettingsError, match=f"tensor_parallel_size is {size}, this checkpoint allows {allowed}:"
    ) as error:
        Shard(0, size).divide(parse_config(tiny_config(**changes)))
    assert error.value.param == "tensor_parallel_size"
