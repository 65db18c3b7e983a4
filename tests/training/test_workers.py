"""A training by Ray Train: the updates of one worker, also when a worker is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from service.errors import SettingsError
from tests.service.processes import command, descendants
from tests.training.conftest import curve
from training import workers
from training.config import Budget, Keeping, Module, Source, TrainingConfig
from training.lessons import Objective, phases_up_to
from training.losses import Weights
from training.optim import Schedule

pytest.importorskip("pandas", reason="Ray Train is an extra: pip install '.[train]'")
pytestmark = pytest.mark.timeout(900)  # Ray's start takes two minutes of a busy machine
ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "sdar-mrp-random-a"
STEPS = 24
LOSSES = ("--trajectories", "0.5", "--next-pick", "4", "--order", "0.25", "--revision", "0.5", "--copies", "2")


def program(data, out, *more):
    """The program as a process."""
    words = ["--backbone", GOLDEN, "--data", data, "--out", out, "--steps", str(STEPS), "--batch", "4", *LOSSES, *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    call = [sys.executable, "-m", "service.cli", "train-mrp", "--device", "cpu", "--threads", "1", *words]
    return subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def finished(process):
    output, stderr = process.communicate(timeout=400)
    assert process.returncode == 0, stderr
    return output


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """One worker with the doubled batch."""
    out = tmp_path_factory.mktemp("alone")
    finished(program(data, out, "--accumulate", "2"))
    return out


def farthest(updates, other):
    """The largest relative difference of two curves."""
    assert [line["step"] for line in updates] == [line["step"] for line in other] == list(range(1, STEPS + 1))
    pairs = [(a[key], b[key]) for a, b in zip(updates, other, strict=True) for key in ("chain", "revision")]
    return max(abs(a - b) / max(abs(a), 1e-9) for a, b in pairs)


@pytest.mark.slow  # what workers share is in tests/training/test_session.py, without Ray
@pytest.mark.ray
def test_two_workers_make_the_updates_of_one_with_the_doubled_batch_even_if_one_is_killed(
    data, alone, tmp_path, record_property
):
    """A death costs the updates since the last state."""
    log = tmp_path / "training" / "losses.jsonl"
    process = program(data, tmp_path, "--workers", "2", "--save-every", "10")
    try:
        until(lambda: log.is_file() and len(log.read_text().splitlines()) >= 12, process)
        first = log.stat().st_ino
        os.kill(workers_of(process)[0], signal.SIGKILL)
        output = finished(process)
    finally:
        process.kill()
    assert log.stat().st_ino != first  # it was started again, and took its log up
    assert "tokens/forward" in output
    difference = farthest(curve(alone), curve(tmp_path))
    record_property("largest_relative_difference", difference)
    assert difference < 1e-3


def workers_of(process):
    return [each for each in descendants(process.pid) if command(each).startswith("ray::RayTrainWorker")]


def until(condition, process):
    deadline = time.monotonic() + 400
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_refusal_of_a_worker_is_written_down_and_not_retried(data, tmp_path, monkeypatch):
    monkeypatch.setattr("ray.train.get_context", lambda: Mock(**{"get_world_rank.return_value": 1}))
    monkeypatch.setattr("ray.train.torch.get_device", lambda: "cpu")
    source, keeping = Source(str(GOLDEN), data), Keeping(tmp_path)
    objective = Objective(phases_up_to(2, Weights()))
    plan = TrainingConfig(source, objective, Schedule(1e-3), Budget(steps=1, batches=3), keeping, Module())
    monkeypatch.setattr("training.session.train", Mock(side_effect=SettingsError("no such thing")))
    workers.work({"plan": plan, "threads": 1})
    assert (tmp_path / workers.REFUSAL).read_text() == "no such thing"
