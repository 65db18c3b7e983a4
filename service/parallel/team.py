"""The team of processes that hold one model, as rank 0 sees it: started, told what to do, watched, ended.

    with Team(2, "cpu") as team:
        checkpoint = team.load("service/demo", LoadOptions())
        engine = Engine(checkpoint, parts=Parts(runner=team.runner))

A rank that ends is the end of the team: the next forward raises, and so does one that is under way. Every other rank
ends with rank 0, however that ends, because their sockets close.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import torch

from service.engine.forward.grouping import Group as Rows
from service.engine.forward.grouping import Grouping
from service.engine.forward.networks import Computed, Execution, LocalNetworks, Shapes, Which
from service.engine.forward.rows import Row
from service.engine.forward.runner import Runner
from service.errors import EngineFailed, MrpServeError, ReplicaLost, SettingsError
from service.model import Checkpoint, LoadOptions, load_checkpoint, resolve
from service.model.memory import DeviceMemory, memory_of
from service.model.shard import Shard
from service.parallel.channel import Channel
from service.parallel.group import Group
from service.parallel.messages import Failed, Forward, Join, Load, Open, Ready

#: seconds for a process to start, which imports torch; and for one to end when its socket is closed
_START_S, _END_S = 120.0, 5.0
#: seconds in which a rank that made an exchange fail says why, or is seen to have ended
_LAST_WORDS_S = 1.0


class Rank:
    """A process that follows. `failure`: why it can no longer; None while it can."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.failure = rank, None
        own, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-P", "-m", "service.parallel.follower", str(theirs.fileno()), str(folder)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
        self._channel = Channel(own)
        self._answers: queue.SimpleQueue[Ready | MrpServeError] = queue.SimpleQueue()
        self._ended = threading.Event()
        threading.Thread(target=self._read, name=f"rank {rank}", daemon=True).start()

    failure: MrpServeError | None

    def tell(self, message: Join | Load | Open | Forward) -> None:
        """Sends a message. Raises `failure` if there is one."""
        try:
            self._channel.send(message)
        except EOFError:
            self._ended.wait(_LAST_WORDS_S)
        if self.failure is not None:
            raise self.failure

    def answer(self, timeout_s: float | None = None) -> Ready:
        """Waits for the answer to a message. Raises what the rank could not do."""
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            answer = ReplicaLost(f"rank {self.rank} has not answered within {timeout_s:g} s")
        if isinstance(answer, MrpServeError):
            raise answer
        return answer

    def ended(self, timeout_s: float) -> bool:
        """Whether it has ended, or does within the time."""
        return self._ended.wait(timeout_s)

    def close(self) -> None:
        """Ends the process and waits for its end."""
        self._channel.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def _read(self) -> None:
        try:
            while not isinstance(message := self._channel.receive(), Failed):
                self._answers.put(message)
            error = message.error
            failure = error if isinstance(error, MrpServeError) else EngineFailed(f"rank {self.rank} failed: {error}")
        except EOFError:
            failure = ReplicaLost(f"the process of rank {self.rank} has ended")
        self.failure = failure
        self._answers.put(failure)
        self._ended.set()


class Team:
    """`size` ranks on a kind of device ("cpu", "cuda"), this process the first.

    `timeout_s`: after which an exchange between the ranks counts as lost. `deterministic`: sums are made in the order of
    the ranks, whatever their shape. Raises SettingsError if there are fewer devices; ReplicaLost if a rank does not start.
    """

    def __init__(self, size: int, device: str, *, timeout_s: float = 60.0, deterministic: bool = False) -> None:
        _check(size, device)
        self.size, self._kind = size, device
        self._checkpoint: Checkpoint | None = None
        self._lost: MrpServeError | None = None
        self._folder = TemporaryDirectory(prefix="mrp-serve-ranks-")
        folder = Path(self._folder.name)
        self._ranks = [Rank(rank, folder) for rank in range(1, size)]
        try:
            self._answers(_START_S)
            join = Join(
                0,
                size,
                self._device(0),
                str(folder / "store"),
                timeout_s,
                deterministic,
                torch.get_num_threads(),
            )
            for rank in self._ranks:
                rank.tell(replace(join, rank=rank.rank, device=self._device(rank.rank)))
            self._group = Group(join)
            self._answers(timeout_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def failure(self) -> str | None:
        """Why the team can no longer compute. None while it can."""
        failures = [self._lost, *(rank.failure for rank in self._ranks)]
        return next((failure.message for failure in failures if failure is not None), None)

    @property
    def pids(self) -> list[int]:
        """The processes of the other ranks."""
        return [rank.pid for rank in self._ranks]

    def load(self, name: str | Path, options: LoadOptions) -> Checkpoint:
        """This rank's part of a checkpoint; each other rank loads its own at the same time.

        Raises what `load_checkpoint` raises; SettingsError if the checkpoint cannot be divided so.
        """
        path = resolve(name)
        for rank in self._ranks:
            own = replace(options, device=self._device(rank.rank), shard=Shard(rank.rank, self.size))
            rank.tell(Load(str(path), own))
        checkpoint = load_checkpoint(path, replace(options, device=self._device(0), shard=Shard(0, self.size)))
        checkpoint.share(self._group.total)
        answers = self._answers(None)
        self._checkpoint = checkpoint
        self._memory = [ready.memory for ready in answers if ready.memory is not None]
        return checkpoint

    def memory(self) -> DeviceMemory:
        """What the rank with the least has for its cache and its forwards; on a CPU, a rank's share."""
        own = memory_of(torch.device(self._device(0)))
        if own.kind == "cpu":
            return replace(own, free=own.free // self.size, total=own.total // self.size)
        return min([own, *self._memory], key=lambda memory: memory.free)

    def runner(
        self,
        checkpoint: Checkpoint,
        num_pages: int,
        grouping: Grouping | None = None,
        num_candidates: int = 0,
        execution: Execution | None = None,
    ) -> Runner:
        """A runner over the checkpoint that the team has loaded last, with the arguments of `Runner`.

        It takes the place of an earlier one. Forwards are not captured as CUDA graphs.
        """
        if checkpoint is not self._checkpoint:
            raise AssertionError("the checkpoint is not the one that the team has loaded")
        execution = replace(execution or Execution(), cuda_graphs=False, networks=self._networks)
        return Runner(checkpoint, num_pages, grouping, num_candidates, execution)

    def close(self) -> None:
        """Ends the other ranks. They also end when this process does."""
        self._lost = self._lost or ReplicaLost("the team of ranks is closed")
        for rank in self._ranks:
            rank.close()
        self._folder.cleanup()

    def _networks(self, checkpoint: Checkpoint, num_pages: int, shapes: Shapes, execution: Execution) -> _Leading:
        for rank in self._ranks:
            rank.tell(Open(num_pages, shapes, execution.attention))
        own = LocalNetworks(checkpoint, num_pages, shapes, execution)
        self._answers(None)
        return _Leading(self, own)

    def _answers(self, timeout_s: float | None) -> list[Ready]:
        return [rank.answer(timeout_s) for rank in self._ranks]

    def _device(self, rank: int) -> str:
        return f"cuda:{rank}" if self._kind == "cuda" else self._kind

    def forward(self, own: LocalNetworks, which: Which, group: Rows[Row]) -> Computed:
        """A forward on all ranks, of which `own` computes this one's part.

        Raises ReplicaLost if a rank is lost, EngineFailed if its part failed. No forward can follow then: the ranks may
        be at different places.
        """
        if self._lost is not None:
            raise self._lost
        try:
            message = Forward.of(which, group)
            for rank in self._ranks:
                rank.tell(message)
            if which == "mrp":
                self._group.share(torch.stack([row.anchor for row in group.members if row.anchor is not None]))
            return own.forward(which, group)
        except BaseException as error:
            self._lost = self._why(error)
            if isinstance(error, Exception):
                raise self._lost from error
            raise

    def _why(self, error: BaseException) -> MrpServeError:
        """Why a forward failed: what a rank says of it, or that it has ended; else this rank's own error."""
        deadline = time.monotonic() + _LAST_WORDS_S
        while time.monotonic() < deadline:
            for rank in self._ranks:
                if rank.failure is not None:
                    return rank.failure
            self._ranks[0].ended(_LAST_WORDS_S / 100)
        return EngineFailed(f"a forward of {self.size} ranks failed: {type(error).__name__}")


class _Leading:
    """The networks of rank 0, which take all ranks along."""

    def __init__(self, team: Team, own: LocalNetworks) -> None:
        self._team, self._own = team, own

    @property
    def num_pages(self) -> int:
        """Pages of its cache."""
        return self._own.num_pages

    def forward(self, which: Which, group: Rows[Row]) -> Computed:
        """See `Networks.forward`."""
        return self._team.forward(self._own, which, group)


def _check(size: int, device: str) -> None:
    if size < 2:
        raise ValueError(f"a team has at least 2 ranks, not {size}")
    if device not in {"cpu", "cuda"}:
        raise SettingsError(
            f"device is {device!r}, with tensor_parallel_size {size} allowed are 'auto', 'cpu' and 'cuda'",
            param="device",
        )
    found = torch.cuda.device_count() if device == "cuda" else size
    if found < size:
        raise SettingsError(
            f"tensor_parallel_size is {size}, but torch sees {found} CUDA devices here", param="tensor_parallel_size"
        )
