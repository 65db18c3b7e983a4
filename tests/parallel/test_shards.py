"""What each rank loads: together all of every divided weight, and whole what is not divided."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from service.errors import CheckpointError, SettingsError
from service.model import Checkpoint, LoadOptions, load_checkpoint, parse_config
from service.model.config import Shard
from tests.tiny import ALL_NAMES, EXPERTS, GOLDEN, GOLDEN_NAMES, LLADA2, tiny_config


def shards(folder: Path, size: int, dtype: torch.dtype = torch.float32) -> list[Checkpoint]:
    return [load_checkpoint(folder, LoadOptions(dtype, shard=Shard(rank, size))) for rank in range(size)]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ALL_NAMES)
def test_the_parts_of_a_feed_forward_add_up(name: str, size: int) -> None:
    exact = torch.float64
    whole, parts = load_checkpoint(GOLDEN / name, LoadOptions(exact)), shards(GOLDEN / name, size, exact)
    x = torch.randn(3, 4, whole.config.hidden_size, generator=torch.Generator().manual_seed(1), dtype=exact)
    for module, *pieces in zip(whole.networks, *(part.networks for part in parts), strict=True):
        for layer, *shares in zip(module.layers, *(piece.layers for piece in pieces), strict=True):
            total = sum(share.mlp(x) for share in shares)
            torch.testing.assert_close(total, layer.mlp(x), rtol=0, atol=1e-12)


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
