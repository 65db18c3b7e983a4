"""Failures: a rank that dies, hangs or fails; a killed rank 0; checkpoints that cannot be loaded."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from service.decode.block import Block
from service.decode.modes import Static
from service.engine import Engine, EngineConfig, EngineDeps, GenerationRequest
from service.engine.forward.partition import RowGroup
from service.engine.forward.rows import Row
from service.errors import CheckpointError, EngineFailed, ReplicaLost, SettingsError
from service.ipc.connections import Channel, framed
from service.ipc.messagepack import MessagePack
from service.model import LoadOptions
from service.model.transfer import PackedTables
from service.parallel import TensorParallelExecutor
from service.parallel.messages import AT_DRIVER, AT_WORKER
from tests.engine.helpers import CHEAP_ROWS
from tests.tiny import GOLDEN, GOLDEN_NAMES

NAME = GOLDEN / GOLDEN_NAMES[0]


def engine_on(ranks: TensorParallelExecutor) -> Engine:
    checkpoint = ranks.load(NAME, LoadOptions())
    return Engine(checkpoint, EngineConfig(kv_cache_tokens=512), deps=EngineDeps(costs=CHEAP_ROWS, ranks=ranks))


def request(name: str = "one") -> GenerationRequest:
    return GenerationRequest(name, (1, 2, 3), Static(), max_new_tokens=64)


def run(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_killed_rank_ends_the_executor_and_blames_no_request() -> None:
    with TensorParallelExecutor(2, "cpu") as ranks:
        engine = engine_on(ranks)
        engine.submit(request())
        engine.step()
        assert ranks.failure is None
        os.kill(ranks.pids[0], signal.SIGKILL)
        with pytest.raises(ReplicaLost, match="the process of rank 1 has ended"):
            run(engine)
        assert ranks.failure == "the process of rank 1 has ended"
        with pytest.raises(ReplicaLost):
            engine.step()
    assert not alive(ranks.pids[0])


def test_the_error_of_a_failed_rank_ends_the_executor() -> None:
    with TensorParallelExecutor(2, "cpu", timeout_s=30) as ranks:
        engine = engine_on(ranks)
        engine.submit(request())
        engine.step()
        networks = engine._runner.model
        row = Row(Block((10**6, 1, 2, 3)), 0, [0], writes_kv=True)
        forward = networks.plan("backbone", RowGroup([row], range(1)), PackedTables(torch.device("cpu")))
        with pytest.raises(EngineFailed, match=r"rank [01].* failed: IndexError"):
            forward.run()
        with pytest.raises(EngineFailed):
            engine.step()
        assert "IndexError" in str(ranks.failure)


@pytest.mark.parametrize("codec", [AT_WORKER, AT_DRIVER], ids=["to rank 0", "to a worker"])
def test_a_malformed_message_ends_the_connection_with_a_line_in_the_log(
    codec: MessagePack, caplog: pytest.LogCaptureFixture
) -> None:
    sender, receiver = socket.socketpair()
    with sender:
        sender.sendall(framed(b"nonsense"))
        with pytest.raises(EOFError):
            Channel(receiver, codec, "rank 7").receive()
        assert not sender.recv(1)
    assert "the connection to rank 7 ends: 8 bytes are no message" in caplog.text


def test_a_checkpoint_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with TensorParallelExecutor(2, "cpu") as ranks:
        with pytest.raises(CheckpointError, match="neither a folder nor a hub name"):
            ranks.load(tmp_path / "none", LoadOptions())
        ranks.load(NAME, LoadOptions())  # no rank got the other name
        (tmp_path / "config.json").write_text((NAME / "config.json").read_text())
        with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
            ranks.load(tmp_path, LoadOptions())


@pytest.mark.parametrize(("size", "device", "message"), [(2, "cuda:1", "allowed are"), (64, "cuda", "torch sees")])
def test_missing_devices_are_refused(size: int, device: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TensorParallelExecutor(size, device)


@pytest.mark.slow
def test_a_rank_that_hangs_is_lost_when_the_time_is_over() -> None:
    with TensorParallelExecutor(2, "cpu", timeout_s=1) as ranks:
        engine = engine_on(ranks)
        engine.submit(request())
        os.kill(ranks.pids[0], signal.SIGSTOP)
        with pytest.raises(ReplicaLost, match="failed or took too long"):
            run(engine)
    assert not alive(ranks.pids[0])


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
def test_no_rank_outlives_rank_0(tmp_path: Path, busy: bool) -> None:
    program = f"""
import sys, time
from tests.parallel.test_failures import TensorParallelExecutor, engine_on, request
with TensorParallelExecutor(2, "cpu") as team:
    engine = engine_on(team)
    engine.submit(request())
    print(*team.pids, flush=True)
    while True:
        engine.step() if {busy} else time.sleep(1)
        if not engine.has_work:
            engine.submit(request())
"""
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    with started:
        assert started.stdout
        (follower,) = map(int, started.stdout.readline().split())
        assert alive(follower)
        if busy:
            started.kill()
        else:
            os.killpg(started.pid, signal.SIGTERM)
    eventually(lambda: not alive(follower))
    eventually(lambda: not list(tmp_path.glob("mrp-serve-ranks-*")))
