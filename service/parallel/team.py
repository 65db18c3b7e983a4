"""The team of processes that hold one model, as rank 0 sees it: started, told what to do, watched, ended.

    with Team(2, "cpu") as team:
        checkpoint = team.load("service/demo", LoadOptions())
        engine = Engine(checkpoint, parts=Parts(ranks=team))

A rank that ends is the end of the team: the next forward raises, and so does one that is under way. Every other rank
ends with rank 0, however that ends, because their sockets close.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import torch

from service.engine.forward.grouping import Group as Rows
from service.engine.forward.networks import Computed, Execution, LocalNetworks, Shapes, Which
from service.engine.forward.rows import anchors_of
from service.errors import EngineFailed, MrpServeError, ReplicaLost, SettingsError
from service.model import Checkpoint, LoadOptions, load_checkpoint, resolve
from service.model.memory import DeviceMemory, memory_of
from service.model.shard import Shard
from service.model.weight_update import apply_update, load_update
from service.parallel.channel import Channel
from service.parallel.child import start_child
from service.parallel.group import Group
from service.parallel.messages import Failed, Fetch, Forward, Join, Load, Open, Ready, Take
from service.tracebacks import kind_and_place

#: seconds for a process to start, which imports torch; and for one to end when its socket is closed
_START_S, _END_S = 120.0, 5.0
#: seconds in which a rank that made an exchange fail says why, or is seen to have ended
_LAST_WORDS_S = 1.0


class Rank:
    """A process that follows. `failure`: why it can no longer; None while it can. `lost` is set then."""

    failure: MrpServeError | None = None

    def __init__(self, rank: int, folder: Path, lost: threading.Event) -> None:
        self.rank, self._lost = rank, lost
        self._process, own = start_child("service.parallel.follower", str(folder))
        self._channel = Channel(own)
        self._answers: queue.SimpleQueue[Ready | MrpServeError] = queue.SimpleQueue()
        threading.Thread(target=self._read, name=f"rank {rank}", daemon=True).start()

    def tell(self, message: Join | Load | Open | Forward | Fetch | Take) -> None:
        """Sends a message. Raises `failure` if there is one."""
        try:
            self._channel.send(message)
        except EOFError:
            self._lost.wait(_LAST_WORDS_S)
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

    def dismiss(self) -> None:
        """Makes the process end."""
        self._channel.close()

    def wait(self) -> None:
        """Waits for its end."""
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
        self._lost.set()


class Team:
    """`size` ranks on a kind of device ("cpu", "cuda"), this process the first.

    `timeout_s`: after which an exchange between the ranks counts as lost. `deterministic`: sums are made in the order
    of the ranks, whatever their shape. Raises SettingsError if there are fewer devices; ReplicaLost if a rank does not
    start.
    """

    def __init__(self, size: int, device: str, *, timeout_s: float = 60.0, deterministic: bool = False) -> None:
        _check(size, device)
        self.size, self._kind = size, device
        if device == "cuda":  # all ranks are here, so what NCCL listens on need not be seen from outside
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        self._checkpoint: Checkpoint | None = None
        self._error: MrpServeError | None = None
        self._lost = threading.Event()
        self._folder = TemporaryDirectory(prefix="mrp-serve-ranks-")
        folder = Path(self._folder.name)
        self._ranks = [Rank(rank, folder, self._lost) for rank in range(1, size)]
        try:
            self._answers(_START_S)
            store, threads = str(folder / "store"), torch.get_num_threads()
            join = Join(0, size, self._device(0), store, timeout_s, deterministic, threads)
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
        failures = [self._error, *(rank.failure for rank in self._ranks)]
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
        checkpoint.make_tensor_parallel(self._group.total)
        answers = self._answers(None)
        self._checkpoint = checkpoint
        self._memory = [ready.memory for ready in answers if ready.memory is not None]
        return checkpoint

    def fetch(self, name: str | Path, options: LoadOptions) -> Checkpoint:
        """This rank's part of other weights of the same shape, in the host's memory; each other rank reads its own.

        Forwards go on meanwhile. CheckpointError as in `service.model.exchange`; all ranks keep what they serve then.
        """
        path, served = resolve(name), self._loaded()
        for rank in self._ranks:
            rank.tell(Fetch(str(path), replace(options, shard=Shard(rank.rank, self.size))))
        try:
            fresh = load_update(path, served.config, replace(options, shard=Shard(0, self.size)))
        finally:
            answers = self._answers(None)
        problem = next((ready.problem for ready in answers if ready.problem is not None), None)
        if problem is not None:
            raise problem
        return fresh

    def take(self, fresh: Checkpoint) -> None:
        """Puts the fetched weights in the place of the served ones, on all ranks. No forward may be under way."""
        served = self._loaded()
        for rank in self._ranks:
            rank.tell(Take())
        apply_update(served, fresh)
        self._answers(None)

    def memory(self) -> DeviceMemory:
        """What the rank with the least has for its cache and its forwards; on a CPU, a rank's share."""
        own = memory_of(torch.device(self._device(0)))
        if own.kind == "cpu":
            return replace(own, free=own.free // self.size, total=own.total // self.size)
        return min([own, *self._memory], key=lambda memory: memory.free)

    def networks(self, checkpoint: Checkpoint, num_pages: int, shapes: Shapes, execution: Execution) -> Leading:
        """The networks over all parts of the checkpoint that was loaded last. They take the place of earlier ones.

        Forwards are not captured as CUDA graphs.
        """
        if checkpoint is not self._checkpoint:
            raise AssertionError("the checkpoint is not the one that the team has loaded")
        for rank in self._ranks:
            rank.tell(Open(num_pages, shapes, execution.attention))
        own = LocalNetworks(checkpoint, num_pages, shapes, replace(execution, cuda_graphs=False))
        self._answers(None)
        return Leading(self, own)

    def forward(self, own: LocalNetworks, which: Which, group: Rows) -> Computed:
        """A forward on all ranks, of which `own` computes this one's part.

        Raises ReplicaLost if a rank is lost, EngineFailed if its part failed. No forward can follow then: the ranks may
        be at different places.
        """
        if self._error is not None:
            raise self._error
        try:
            message = Forward.of(which, group)
            for rank in self._ranks:
                rank.tell(message)
            if (anchors := anchors_of(group.members)) is not None:
                self._group.share(anchors)
            return own.forward(which, group)
        except BaseException as error:
            self._error = self._why(error)
            if isinstance(error, Exception):
                raise self._error from error
            raise

    def close(self) -> None:
        """Ends the other ranks. They also end when this process does."""
        self._error = self._error or ReplicaLost("the team of ranks is closed")
        for rank in self._ranks:
            rank.dismiss()
        for rank in self._ranks:
            rank.wait()
        self._folder.cleanup()

    def _loaded(self) -> Checkpoint:
        if self._checkpoint is None:
            raise AssertionError("no checkpoint is loaded")
        return self._checkpoint

    def _answers(self, timeout_s: float | None) -> list[Ready]:
        return [rank.answer(timeout_s) for rank in self._ranks]

    def _device(self, rank: int) -> str:
        return f"cuda:{rank}" if self._kind == "cuda" else self._kind

    def _why(self, error: BaseException) -> MrpServeError:
        """Why a forward failed: a rank's own error, this one's included, else that a rank is lost."""
        if isinstance(error, ReplicaLost | EngineFailed):
            self._lost.wait(_LAST_WORDS_S)
            failures = [failure for rank in self._ranks if (failure := rank.failure) is not None]
            own = (failure for failure in failures if not isinstance(failure, ReplicaLost))
            return next(own, next(iter(failures), error))
        return EngineFailed(f"a forward on rank 0 of {self.size} failed: {kind_and_place(error)}")


class Leading:
    """The networks of rank 0, which take all ranks along."""

    def __init__(self, team: Team, own: LocalNetworks) -> None:
        self._team, self._own = team, own

    @property
    def num_pages(self) -> int:
        """Pages of its cache."""
        return self._own.num_pages

    def forward(self, which: Which, group: Rows) -> Computed:
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
