"""Pages of docs/ with numbers and files: the numbers are computed, and commands name files that exist."""

import json
import math
import re

import pytest
from safetensors import safe_open

from benchmarks.shapes import SHAPES
from service.demo import CHECKPOINT
from tests.deploy.dockerfile import ROOT
from tests.deploy.sizing import GPUS, size_of

GUIDE = (ROOT / "docs" / "deploy.md").read_text()
BIGGER = (ROOT / "docs" / "bigger-models.md").read_text()
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text()


def row(shape, devices, *cells):
    size = size_of(shape, devices)
    fits = [f"{size.requests(gpu):,}" for gpu in GPUS]
    return f"| {' | '.join([*cells, f'{size.weights_gib:.1f} GiB', f'{size.kv_kib_a_token:.0f} KiB', *fits])} |"


def test_the_sizing_table_is_what_check_would_say():
    assert {row(shape, 1, f"`{shape}`") for shape in SHAPES} <= set(GUIDE.splitlines())
    assert f"| model | weights | KV a token | {' | '.join(f'{gpu} GiB' for gpu in GPUS)} |" in GUIDE


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("shape", ["sdar-8b", "sdar-30b-a3b", "llada2-mini"])
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
