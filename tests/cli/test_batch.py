"""`mrp-serve batch` as a process: a line for every line, also after kills, and options of the program."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from service.batch.journal import Journal
from service.cli.batch import settings_of_replicas
from service.errors import SettingsError
from service.replica.replica import Replica
from service.settings.settings import Settings
from tests.process_deps import UNMEASURED
from tests.replicas import load_replica
from tests.service.processes import descendants

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "sdar-mrp-random-a"
OPTIONS = ("--model", GOLDEN, "--device", "cpu", "--max-num-seqs", "8")
BODY = {"mode": "static", "max_new_tokens": 12}

signal.signal(signal.SIGINT, signal.default_int_handler)  # `make test &` in a script ignores it


def start(file: Path, out: Path, *options: object) -> subprocess.Popen[str]:
    call = [sys.executable, "-m", "service.cli", "batch", "--in", file, "--out", out]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        list(map(str, [*call, *OPTIONS, *options])), cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, stderr = process.communicate(timeout=250)
    assert process.returncode == 0, stderr


def write(file: Path, count: int) -> Path:
    rng = random.Random(count)
    lines = [
        {"custom_id": f"id-{number}", "prompt_token_ids": rng.choices(range(5, 300), k=6), "seed": number}
        for number in range(count)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def read_outputs(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def tokens(out: Path) -> dict[str, list[int]]:
    return {output["custom_id"]: output["response"]["body"]["token_ids"] for output in read_outputs(out)}


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program and its engine run in the test's process."""

    async def start_replica(name: str, settings: Settings) -> Replica:
        return load_replica(name, settings, UNMEASURED)

    monkeypatch.setattr("service.batch.replicas.start_replica", start_replica)
    monkeypatch.setattr("service.batch.replicas.tune_interpreter", lambda: None)
    monkeypatch.setattr("service.telemetry.logs.install_logs", lambda _: None)


@pytest.fixture
def batch(run_program, in_process: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """batch(file, out) -> stderr of the program."""

    def run(file: Path, out: Path, status: int = 0) -> str:
        options = ("--in", file, "--out", out, *OPTIONS, "--defaults", json.dumps(BODY))
        assert run_program("batch", *options) == status
        return capsys.readouterr().err

    return run


def test_a_stopped_batch_resumes_and_a_finished_one_is_not_asked_again(
    tmp_path: Path, batch: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = write(tmp_path / "in.jsonl", 100), tmp_path / "out.jsonl"
    with file.open("a") as further:
        further.write('{oops\n\n{"prompt": ""}\n{"custom_id": "id-3", "prompt": "x"}\n')
    process = start(file, out, "--defaults", json.dumps(BODY))
    while not out.exists() or out.stat().st_size < 5_000:
        assert process.poll() is None
        time.sleep(0.02)
    engines = descendants(process.pid)
    process.kill()
    process.communicate()
    with out.open("ab") as torn:
        torn.write(b'{"id":"batch_req_1","custom')
    written = out.read_bytes().rpartition(b"\n")[0] + b"\n"
    with monkeypatch.context() as patched:
        interrupt_after(20, patched)
        stderr = batch(file, out, 130)
    assert "interrupted; run the same command again to resume" in stderr
    assert "Traceback" not in stderr
    stderr = batch(file, out)
    for text in ("103 lines in", "3 of them errors", "lines/s", "tokens/s", "0:00:00 left"):
        assert text in stderr
    assert out.read_bytes().startswith(written)
    results = read_outputs(out)
    assert Counter(output["line"] for output in results) == Counter([*range(1, 102), 103, 104])
    assert {output["response"]["body"].get("mode") for output in results if not output["error"]} == {"static"}
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{engine}").exists() for engine in engines):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "loading" not in batch(file, out)
    assert read_outputs(out) == results


def interrupt_after(lines: int, patched: pytest.MonkeyPatch) -> None:
    """SIGINT once the program has written so many lines."""
    write_line, left = Journal.write, iter(range(lines))

    def write_or_interrupt(journal: Journal, output: dict[str, Any]) -> None:
        write_line(journal, output)
        if next(left, None) is None:
            signal.raise_signal(signal.SIGINT)

    patched.setattr(Journal, "write", write_or_interrupt)


@pytest.mark.slow
def test_twenty_kills_at_random_moments_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    """The answers, too, are those of a batch that was not killed: by seed."""
    count, rng = 6000, random.Random(7)
    file, out, whole = write(tmp_path / "in.jsonl", count), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    body = json.dumps(BODY | {"temperature": 1.0})
    finish(start(file, whole, "--defaults", body, "--deterministic"))
    lines_at_kills = []
    while len(lines_at_kills) < 20:
        process = start(file, out, "--defaults", body, "--deterministic")
        before = out.stat().st_size if out.exists() else 0
        while process.poll() is None and (out.stat().st_size if out.exists() else 0) == before:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.7))
        written = out.read_bytes().rpartition(b"\n")[0]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert out.read_bytes().startswith(written)
        lines_at_kills.append(out.read_bytes().count(b"\n"))
    assert lines_at_kills[-1] < count, lines_at_kills
    finish(start(file, out, "--defaults", body, "--deterministic"))
    assert Counter(output["line"] for output in read_outputs(out)) == Counter(range(1, count + 1))
    assert tokens(out) == tokens(whole)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--defaults", "[1]"), "a JSON object is expected"),
        (("--defaults", "{"), "which is not JSON"),
        (("--in", "absent.jsonl"), "in is absent.jsonl, which cannot be read: No such file"),
        (("--model", "absent"), "absent"),
        (("--max-num-seqs", "0"), "max_num_seqs"),
    ],
)
def test_a_wrong_option_is_one_line(run_program, in_process, tmp_path, capsys, options, reason) -> None:
    file = write(tmp_path / "in.jsonl", 1)
    assert run_program("batch", "--in", file, "--out", tmp_path / "out.jsonl", *options) == 1
    stderr = capsys.readouterr().err
    assert reason in stderr
    assert "Traceback" not in stderr


def test_the_output_is_not_the_input(run_program, tmp_path, capsys) -> None:
    file = write(tmp_path / "in.jsonl", 1)
    content = file.read_text()
    assert run_program("batch", "-i", file, "-o", file) == 1
    assert "which is the input" in capsys.readouterr().err
    assert file.read_text() == content


def devices(monkeypatch: pytest.MonkeyPatch, gpus: int, **settings: object) -> list[str]:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    return [replica.device for replica in settings_of_replicas(Settings(**settings))]


def test_there_is_a_replica_for_each_gpu_unless_the_settings_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices(monkeypatch, 0) == ["auto"]
    assert devices(monkeypatch, 0, num_replicas=2) == ["auto", "auto"]
    assert devices(monkeypatch, 3) == ["cuda:0", "cuda:1", "cuda:2"]
    assert devices(monkeypatch, 3, num_replicas=2) == ["cuda:0", "cuda:1"]
    assert devices(monkeypatch, 3, device="cuda:2") == ["cuda:2"]
    assert devices(monkeypatch, 3, device="cpu") == ["cpu"]
    assert devices(monkeypatch, 2, tensor_parallel_size=2) == ["auto"]
    with pytest.raises(SettingsError, match="num_replicas is 4, but this machine has 3 GPUs"):
        devices(monkeypatch, 3, num_replicas=4)
    with pytest.raises(SettingsError, match="num_replicas is 2, allowed is 1"):
        devices(monkeypatch, 4, num_replicas=2, tensor_parallel_size=2)
