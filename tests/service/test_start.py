"""Starts that cannot succeed and end at once with the reason in one line, and one that takes long and succeeds."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from tests.service.processes import command, descendants
from tests.service.running import GOLDEN, Service, free_port

#: beginnings of what is said where the machine takes more than ten seconds to come so far
_WAITS = ("mrp-serve: waiting for the processes of ", "mrp-serve: 0 of 1 replicas run (1 starting)")

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]


def test_a_checkpoint_that_cannot_be_loaded(tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(GOLDEN, broken)
    weights = load_file(broken / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    serve = [sys.executable, "-m", "service.cli", "serve", "--model", str(broken), "--port", str(free_port())]
    done = subprocess.run(serve, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    stderr = [line for line in done.stderr.splitlines() if line.startswith("mrp-serve: ")]
    assert stderr[-1] == (
        f"mrp-serve: the service did not start: CheckpointError: {broken}: weight 'model.norm.weight' is missing"
    )
    assert stderr[0] == "mrp-serve: loading broken …"
    assert all(line.startswith(_WAITS) for line in stderr[1:-1])
    assert "Traceback" not in done.stderr


def test_a_machine_on_which_ray_needs_more_than_its_own_limits(tmp_path):
    """One start, and nothing that is left of another one."""
    service = Service(tmp_path, "tests.service.slow_ray", before=[tmp_path])
    try:
        assert service.becomes_ready(), service.stderr
        assert [line.strip() for line in service.stderr.splitlines()][:2] == [
            "mrp-serve: loading sdar-mrp-random-b …",
            "mrp-serve: waiting for the processes of Ray …",
        ]
        names = [
            Path(words[0]).name for process in descendants(service.process.pid) if (words := command(process).split())
        ]
        assert (names.count("gcs_server"), names.count("raylet")) == (1, 1)
    finally:
        assert service.stop() == 0
    assert "is served on" in service.stderr
