"""A worker, any rank but 0: `python -m service.parallel.worker DESCRIPTOR FOLDER`, started by `executor.py`.

It handles rank 0's messages in their order, and ends at once when its socket closes.
"""

import gc
import os
import queue
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch
from msgspec.structs import replace

from service.engine.forward.model_forward import ExecutionConfig, ModelForward
from service.engine.forward.rows import Anchor, ForwardOutput
from service.errors import EngineFailed, MrpServeError, OutOfMemory
from service.ipc.connections import Channel
from service.model import Checkpoint, load_checkpoint
from service.model.device import memory_of
from service.model.transfer import PackedTables
from service.model.weight_update import apply_update, drop_weights, load_update, restore_weights
from service.parallel import messages
from service.parallel.process_group import ProcessGroup
from service.tracebacks import type_and_line


class Worker:
    """One rank's state: its group, its part of a checkpoint, its networks. `send`: sends the answer to `LoadShard`."""

    _checkpoint: Checkpoint
    _fresh: Checkpoint
    _networks: ModelForward

    def __init__(self, join: messages.Join, send: Callable[[messages.WorkerReady], None]) -> None:
        self._send = send
        torch.set_num_threads(join.threads)
        self._device = torch.device(join.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._group = ProcessGroup(join)

    def handle(self, command: messages.Command) -> messages.WorkerReady | None:
        match command:
            case messages.ForwardCommand():
                self._forward(command)
                return None
            case messages.LoadShard():
                threading.Thread(target=self._load_shard, args=(command,), daemon=True).start()
                return None
            case messages.LoadCheckpoint(path, options):
                for name in ("_networks", "_checkpoint"):  # they make room for the next ones
                    vars(self).pop(name, None)
                self._checkpoint = load_checkpoint(path, options)
                self._checkpoint.make_tensor_parallel(self._group.all_reduce)
                return messages.WorkerReady(memory_of(self._device))
            case messages.OpenNetworks():
                self._open(command)
            case messages.ChangeState(action):
                try:
                    self._change(action)
                except OutOfMemory as error:
                    return messages.WorkerReady(problem=error)
        return messages.WorkerReady()

    def _open(self, command: messages.OpenNetworks) -> None:
        vars(self).pop("_networks", None)  # its cache makes room for the next one
        gc.collect()  # graphs and networks refer to each other
        execution = ExecutionConfig(
            command.attention, command.cuda_graphs, agree=self._group.agree, kv_cache_dtype=command.kv_cache_dtype
        )
        self._networks = ModelForward(self._checkpoint, command.num_pages, command.shapes, execution)

    def _load_shard(self, command: messages.LoadShard) -> None:
        vars(self).pop("_fresh", None)
        problem: MrpServeError | None = None
        try:
            served, newest_only = self._checkpoint.config, command.newest_only
            self._fresh = load_update(command.folders, served, command.options, newest_only=newest_only)
        except MrpServeError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - rank 0 raises it
            problem = EngineFailed(f"weights could not be read: {type_and_line(error)}")
        with suppress(EOFError):  # then this process ends
            self._send(messages.WorkerReady(problem=problem))

    def _change(self, action: messages.Action) -> None:
        match action:
            case "apply_update":
                apply_update(self._checkpoint, self._fresh)
                del self._fresh
            case "drop_weights":
                drop_weights(self._checkpoint)
            case "restore_weights":
                restore_weights(self._checkpoint, self._device)
            case "release_cache":
                self._networks.release_cache()
            case "restore_cache":
                self._networks.restore_cache()
            case "seal":
                self._networks.seal()

    @torch.inference_mode()
    def _forward(self, command: messages.ForwardCommand) -> None:
        group = command.group
        if command.which == "mrp":
            config = self._checkpoint.config
            shape = (len(group.members), config.block_size, config.hidden_size)
            anchors = torch.empty(shape, device=self._device, dtype=self._checkpoint.dtype)
            self._group.broadcast(anchors)
            states = ForwardOutput(anchors)
            rows = [replace(row, anchor=Anchor(states, index)) for index, row in enumerate(group.members)]
            group = type(group)(rows, group.indices, group.width)
        self._networks.plan(command.which, group, PackedTables(self._device)).run()


class _Process:
    """This process: it handles messages until there is an error, which it reports, or until its channel closes.

    `folder`: the folder of the ranks' store, which rank 0 cannot remove if it is killed.
    """

    def __init__(self, channel: Channel, folder: Path) -> None:
        self._channel, self._folder = channel, folder
        self._inbox: queue.SimpleQueue[messages.Command] = queue.SimpleQueue()

    def run(self) -> NoReturn:
        threading.Thread(target=self._read, daemon=True).start()
        rank = "a rank"
        try:
            self._channel.send(messages.WorkerReady())
            join = self._inbox.get()
            if not isinstance(join, messages.Join):
                raise AssertionError("the first message is not the one to join")
            rank = f"rank {join.rank}"
            worker = Worker(join, self._channel.send)
            self._channel.send(messages.WorkerReady())
            while True:
                answer = worker.handle(self._inbox.get())
                if answer is not None:
                    self._channel.send(answer)
        except EOFError:
            self._end(0)
        except BaseException as error:  # noqa: BLE001 - rank 0 raises it
            failure = (
                error if isinstance(error, MrpServeError) else EngineFailed(f"{rank} failed: {type_and_line(error)}")
            )
            with suppress(EOFError):
                self._channel.send(messages.WorkerFailed(failure))
            self._end(1)

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(self._channel.receive())
        except EOFError:
            self._end(0)

    def _end(self, status: int) -> NoReturn:
        """Not by an exception: the other thread may be in a sum that never ends."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(status)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal, or `timeout`, sends it to all; rank 0 decides
    channel = Channel(socket.socket(fileno=int(sys.argv[1])), messages.AT_WORKER, "rank 0")
    _Process(channel, Path(sys.argv[2])).run()
