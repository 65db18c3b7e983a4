"""Pages of docs/ with numbers and files: the numbers are computed, and commands name files that exist."""

import json
import math
import re
from dataclasses import asdict, dataclass

import pytest
import torch
from safetensors import safe_open

from benchmarks.shapes import SHAPES, shape_named
from service.demo import CHECKPOINT
from service.model import parse_config
from service.model.attention import page_bytes
from service.model.checkpoint import num_parameters
from service.model.config import Shard
from tests.deploy.dockerfile import ROOT
from tests.tiny import tiny_config

GUIDE = (ROOT / "docs" / "deploy.md").read_text()
BIGGER = (ROOT / "docs" / "bigger-models.md").read_text()
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()
#: left alone: what the driver and other processes take, and activations and logits of one forward
USABLE, WORKING_GIB = 0.9, 2
GPUS = (24, 48, 80, 140)
REQUEST_TOKENS = 2048


@dataclass(frozen=True)
class Size:
    """A model in bfloat16, or a device's part of one."""

    weights_gib: float
    kv_kib_a_token: float

    def requests(self, gpu_gib):
        """How many requests of 2,048 tokens a GPU holds beside the weights; 0 where they do not fit."""
        free = gpu_gib * USABLE - self.weights_gib - WORKING_GIB
        return max(0, int(free * 2**20 / self.kv_kib_a_token / REQUEST_TOKENS))


def size_of(shape, devices=1):
    """What each of so many devices holds of a shape."""
    config = Shard(0, devices).divide(
        parse_config(tiny_config(num_nextn_predict_layers=3) | asdict(shape_named(shape)))
    )
    kv = page_bytes(config, torch.bfloat16.itemsize) / config.block_size
    return Size(num_parameters(config) * torch.bfloat16.itemsize / 2**30, kv / 1024)


def row(shape, devices, *cells):
    size = size_of(shape, devices)
    fits = [f"{size.requests(gpu):,}" for gpu in GPUS]
    return f"| {' | '.join([*cells, f'{size.weights_gib:.1f} GiB', f'{size.kv_kib_a_token:.0f} KiB', *fits])} |"


def test_the_sizing_table_is_what_check_would_say():
    assert {row(shape, 1, f"`{shape}`") for shape in SHAPES} <= set(GUIDE.splitlines())
    assert f"| model | weights | KV a token | {' | '.join(f'{gpu} GiB' for gpu in GPUS)} |" in GUIDE


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("shape", ["sdar-8b", "sdar-30b-a3b", "llada2-mini", "stable-diffcoder-8b", "fast-dllm-7b"])
def test_the_sizing_table_of_several_devices_is_too(shape, devices):
    assert row(shape, devices, f"`{shape}`", str(devices)) in BIGGER.splitlines()


def test_the_worked_example_is_reckoned_from_the_measurement():
    newest = max((ROOT / "dev" / "lab" / "results").glob("edition*-bench-cpu-2-threads.json"))
    assert f"(../dev/lab/results/{newest.name})" in PERFORMANCE
    [rate] = [row["engine"] for row in json.loads(newest.read_text())["speed"] if row["concurrency"] == 32]
    price = 0.10
    reckoned = f"{price:.2f} / ({rate:,.0f} * 3600) * 1,000,000 = {price / (rate * 3600) * 1e6:.3f}"
    assert reckoned.replace("*", "\N{MULTIPLICATION SIGN}") in PERFORMANCE


def test_the_worked_example_is_of_the_checkpoint_that_is_shipped():
    with safe_open(CHECKPOINT / "model.safetensors", framework="pt") as file:
        sizes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 (not a dict)
    backbone = sum(math.prod(shape) for name, shape in sizes.items() if not name.startswith("mrp_modules."))
    assert f"the demo checkpoint ({backbone / 1e6:.2f} M parameters)" in PERFORMANCE


def test_files_in_commands_exist():
    named = set(re.findall(r"deploy/[\w./-]+", GUIDE))
    assert len(named) >= 5
    assert all((ROOT / name).exists() for name in named)
