"""The ranks that hold one model together: rank 0 starts, commands, watches and ends the workers.

    with TensorParallelExecutor(2, "cpu") as executor:
        checkpoint = executor.load("service/demo", LoadOptions())
        engine = Engine(checkpoint, deps=EngineDeps(ranks=executor))

If a worker ends, `failure` says why, and the next forward raises. On a CPU the running forward raises, too. On CUDA it
hangs until NCCL ends this process (`timeout_s`). Every worker ends with rank 0, because its socket closes.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self, TypeVar

import torch
from msgspec import structs
from torch import Tensor

from service.engine.forward.model_forward import ExecutionConfig, ModelForward, Network, PlannedForward, ShapePolicy
from service.engine.forward.partition import RowGroup
from service.engine.forward.rows import AnchorRows, anchors_of
from service.errors import EngineFailed, MrpServeError, OutOfMemory, ReplicaLost, SettingsError
from service.ipc.connections import Channel, start_child
from service.model import Checkpoint, LoadOptions, load_checkpoint, resolve
from service.model.config import Shard
from service.model.device import DeviceMemory, memory_of
from service.model.transfer import PackedTables
from service.model.weight_update import apply_update, drop_weights, load_update, restore_weights
from service.parallel import messages
from service.parallel.process_group import ProcessGroup
from service.settings.defaults import STEP_TIMEOUT_S
from service.tracebacks import type_and_line

_T = TypeVar("_T")
#: seconds for a process to start, which imports torch, and to end when its socket is closed
_START_S, _END_S = 120.0, 5.0
#: seconds in which a rank that made an operation fail reports its error, or is seen to have ended
_LAST_WORDS_S = 1.0


class WorkerHandle:
    """A worker's process. `failure`: why it can no longer compute; None while it can. `lost` is set with it."""

    failure: MrpServeError | None = None

    def __init__(self, rank: int, folder: Path, lost: threading.Event) -> None:
        self.rank, self._lost = rank, lost
        self._process, end = start_child("service.parallel.worker", str(folder))
        self._channel = Channel(end, messages.AT_DRIVER, f"rank {rank}")
        self._answers: queue.SimpleQueue[messages.WorkerReady | MrpServeError] = queue.SimpleQueue()
        threading.Thread(target=self._read, name=f"rank {rank}", daemon=True).start()

    def send(self, command: messages.Command) -> None:
        try:
            self._channel.send(command)
        except EOFError:
            self._lost.wait(_LAST_WORDS_S)
        if self.failure is not None:
            raise self.failure

    def answer(self, timeout_s: float | None = None) -> messages.WorkerReady:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            answer = ReplicaLost(f"rank {self.rank} has not answered within {timeout_s:g} s")
        if isinstance(answer, MrpServeError):
            raise answer
        return answer

    def dismiss(self) -> None:
        self._channel.close()

    def wait(self) -> None:
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        try:
            while not isinstance(message := self._channel.receive(), messages.WorkerFailed):
                self._answers.put(message)
            failure: MrpServeError = message.error
        except EOFError:
            failure = ReplicaLost(f"the process of rank {self.rank} has ended")
        self.failure = failure
        self._answers.put(failure)
        self._lost.set()


class TensorParallelExecutor:
    """`size` ranks on a kind of device ("cpu", "cuda"), this process the first.

    `timeout_s`: the seconds after which a collective operation counts as lost. `deterministic`: sums are made in the
    order of the ranks. Raises SettingsError if there are fewer devices; ReplicaLost if a rank does not start.
    """

    _checkpoint: Checkpoint

    def __init__(
        self, size: int, device: str, *, timeout_s: float = STEP_TIMEOUT_S, deterministic: bool = False
    ) -> None:
        _check(size, device)
        self.size, self._kind = size, device
        if device == "cuda":  # all ranks are on this machine, so NCCL needs no address that others can reach
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        self._error: MrpServeError | None = None
        self._lost = threading.Event()
        self._folder = TemporaryDirectory(prefix="mrp-serve-ranks-")
        folder = Path(self._folder.name)
        self._workers = [WorkerHandle(rank, folder, self._lost) for rank in range(1, size)]
        try:
            self._answers(_START_S)
            join = messages.Join(
                rank=0,
                size=size,
                device=self._device(0),
                store=str(folder / "store"),
                timeout_s=timeout_s,
                ordered=deterministic,
                threads=torch.get_num_threads(),
            )
            for worker in self._workers:
                worker.send(structs.replace(join, rank=worker.rank, device=self._device(worker.rank)))
            self._group = ProcessGroup(join)
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
        failures = [self._error, *(worker.failure for worker in self._workers)]
        return next((failure.message for failure in failures if failure is not None), None)

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def load(self, name: str | Path, options: LoadOptions) -> Checkpoint:
        """This rank's part of a checkpoint. Every other rank loads its part at the same time.

        Raises the errors of `load_checkpoint`; SettingsError if the checkpoint cannot be divided by `size`.
        """
        path = resolve(name)
        for worker in self._workers:
            part = replace(options, device=self._device(worker.rank), shard=Shard(worker.rank, self.size))
            worker.send(messages.LoadCheckpoint(str(path), part))
        checkpoint = load_checkpoint(path, replace(options, device=self._device(0), shard=Shard(0, self.size)))
        checkpoint.make_tensor_parallel(self._group.all_reduce)
        answers = self._answers(None)
        self._checkpoint = checkpoint
        self._memory = [ready.memory for ready in answers if ready.memory is not None]
        return checkpoint

    def fetch(self, folders: Sequence[str], options: LoadOptions, *, newest_only: bool = False) -> Checkpoint:
        """This rank's part of new weights, in the host's memory, while forwards go on. Other ranks load theirs.

        CheckpointError as in `model.weight_update`; all ranks then keep the served weights.
        """
        paths, served = tuple(str(resolve(folder)) for folder in folders), self._checkpoint
        parts = [replace(options, shard=Shard(rank, self.size)) for rank in range(self.size)]
        return self._together(
            lambda rank: messages.LoadShard(paths, parts[rank], newest_only),
            partial(load_update, paths, served.config, parts[0], newest_only=newest_only),
        )

    def apply(self, fresh: Checkpoint) -> None:
        """Replaces the served weights by the fetched ones, on all ranks. No forward may be under way."""
        self.change("apply_update", partial(apply_update, self._checkpoint, fresh))

    def drop_weights(self) -> None:
        """Gives the memory of the weights back, on all ranks. No forward may run before `restore_weights`."""
        self.change("drop_weights", partial(drop_weights, self._checkpoint))

    def restore_weights(self) -> None:
        """Takes the memory of the weights again, on all ranks, without numbers. OutOfMemory changes nothing."""
        try:
            self.change("restore_weights", partial(restore_weights, self._checkpoint, torch.device(self._device(0))))
        except OutOfMemory:
            self.drop_weights()
            raise

    def change(self, action: messages.Action, local: Callable[[], None]) -> None:
        """Changes the state of all ranks. `local`: changes this one's. OutOfMemory if any rank has too little."""
        self._together(lambda _: messages.ChangeState(action), local)

    def memory(self) -> DeviceMemory:
        """The memory of the rank with the least, for its cache and its forwards; on a CPU, a rank's share."""
        driver = memory_of(torch.device(self._device(0)))
        if driver.kind == "cpu":
            return replace(driver, free=driver.free // self.size, total=driver.total // self.size)
        return min([driver, *self._memory], key=lambda memory: memory.free)

    def networks(
        self, checkpoint: Checkpoint, num_pages: int, shapes: ShapePolicy, execution: ExecutionConfig
    ) -> DriverNetworks:
        """The networks over all parts of the checkpoint that was loaded last. They replace earlier ones."""
        for worker in self._workers:
            worker.send(
                messages.OpenNetworks(
                    num_pages, shapes, execution.attention, execution.cuda_graphs, execution.kv_cache_dtype
                )
            )
        networks = DriverNetworks(self, checkpoint, num_pages, shapes, replace(execution, agree=self._group.agree))
        self._answers(None)
        return networks

    def run(self, local: PlannedForward, which: Network, group: RowGroup) -> Tensor:
        """A forward on all ranks, `[R, L, H]`. `local`: the part of this one.

        Raises ReplicaLost if a rank is lost, EngineFailed if its part failed. No forward can follow then: the ranks may
        have got to different layers.
        """
        if self._error is not None:
            raise self._error
        try:
            message = messages.ForwardCommand.from_group(which, group)
            for worker in self._workers:
                worker.send(message)
            if (anchors := anchors_of(group.members)) is not None:
                tables = PackedTables(torch.device(self._device(0)))
                gathered = AnchorRows(anchors, tables)
                tables.send()
                self._group.broadcast(gathered.hidden())
            return local.run()
        except BaseException as error:
            self._error = self._why(error)
            if isinstance(error, Exception):
                raise self._error from error
            raise

    def close(self) -> None:
        self._error = self._error or ReplicaLost("the model's ranks are closed")
        for worker in self._workers:
            worker.dismiss()
        for worker in self._workers:
            worker.wait()
        self._folder.cleanup()

    def _together(self, command_of: Callable[[int], messages.Command], local: Callable[[], _T]) -> _T:
        """Sends each worker its command, and does this rank's part. Once all are done, raises the error of a rank."""
        for worker in self._workers:
            worker.send(command_of(worker.rank))
        try:
            result = local()
        finally:
            problems = [ready.problem for ready in self._answers(None)]
        if (problem := next(filter(None, problems), None)) is not None:
            raise problem
        return result

    def _answers(self, timeout_s: float | None) -> list[messages.WorkerReady]:
        return [worker.answer(timeout_s) for worker in self._workers]

    def _device(self, rank: int) -> str:
        return f"cuda:{rank}" if self._kind == "cuda" else self._kind

    def _why(self, error: BaseException) -> MrpServeError:
        if isinstance(error, ReplicaLost | EngineFailed):
            self._lost.wait(_LAST_WORDS_S)
            failures = [failure for worker in self._workers if (failure := worker.failure) is not None]
            causes = (failure for failure in failures if not isinstance(failure, ReplicaLost))
            return next(causes, next(iter(failures), error))
        return EngineFailed(f"a forward on rank 0 of {self.size} failed: {type_and_line(error)}")


class DriverNetworks(ModelForward):
    """The networks of rank 0, whose forwards run on all ranks."""

    def __init__(
        self,
        executor: TensorParallelExecutor,
        checkpoint: Checkpoint,
        num_pages: int,
        shapes: ShapePolicy,
        execution: ExecutionConfig,
    ) -> None:
        super().__init__(checkpoint, num_pages, shapes, execution)
        self._executor = executor

    def plan(self, network: Network, group: RowGroup, tables: PackedTables) -> PlannedForward:
        local = super().plan(network, group, tables)
        return PlannedForward(local.order, lambda: self._executor.run(local, network, group))

    def seal(self) -> None:
        self._executor.change("seal", super().seal)

    def release_cache(self) -> None:
        self._executor.change("release_cache", super().release_cache)

    def restore_cache(self) -> None:
        try:
            self._executor.change("restore_cache", super().restore_cache)
        except OutOfMemory:
            self.release_cache()
            raise


def _check(size: int, device: str) -> None:
    if size < 2:
        raise ValueError(f"a model is held by at least 2 ranks, not {size}")
    if device not in {"cpu", "cuda"}:
        raise SettingsError(
            f"device is {device!r}, with tensor_parallel_size {size} allowed are 'auto', 'cpu' and 'cuda'",
            param="device",
        )
    devices = torch.cuda.device_count() if device == "cuda" else size
    if devices < size:
        raise SettingsError(
            f"tensor_parallel_size is {size}, but torch sees {devices} CUDA devices here", param="tensor_parallel_size"
        )
