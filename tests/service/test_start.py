"""A checkpoint with incomplete weights: the program ends at once with the reason in one line."""

import shutil
import subprocess
import sys

import pytest
from safetensors.numpy import load_file, save_file

from tests.service.running import GOLDEN, free_port

#: is said where the machine takes more than ten seconds to come so far
_WAITS = "mrp-serve: 0 of 1 replicas run (1 starting)"

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]


def test_a_checkpoint_that_cannot_be_loaded(tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(GOLDEN, broken)
    weights = load_file(broken / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    command = [sys.executable, "-m", "service.cli.main", "serve", "--model", str(broken), "--port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    stderr = [line for line in done.stderr.splitlines() if line.startswith("mrp-serve: ")]
    assert stderr[-1] == (
        f"mrp-serve: the service did not start: CheckpointError: {broken}: weight 'model.norm.weight' is missing"
    )
    assert stderr[:-1] in (["mrp-serve: loading broken …"], ["mrp-serve: loading broken …", _WAITS])
    assert "Traceback" not in done.stderr
