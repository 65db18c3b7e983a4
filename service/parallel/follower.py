"""A rank that follows: `python -m service.parallel.follower DESCRIPTOR`, started by `team.py`.

It obeys rank 0's messages in their order. It ends when its socket closes: at once, whatever it is doing, since a sum
that rank 0 takes no part in would never end.
"""

from __future__ import annotations

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

from service.engine.forward.anchors import Anchor, States
from service.engine.forward.networks import Execution, LocalNetworks
from service.errors import EngineFailed, MrpServeError
from service.model import Checkpoint, load_checkpoint
from service.model.memory import memory_of
from service.model.weight_update import apply_update, load_update
from service.parallel.channel import Channel
from service.parallel.group import Group
from service.parallel.messages import Failed, Fetch, Forward, Join, Load, Open, Ready, Take
from service.tracebacks import kind_and_place

Message = Join | Load | Open | Forward | Fetch | Take


class Follower:
    """One rank's state: its group, its part of a checkpoint, its networks.

    `say`: sends an answer that comes later than others.
    """

    def __init__(self, join: Join, say: Callable[[Ready], None]) -> None:
        self._say = say
        torch.set_num_threads(join.threads)
        self._device = torch.device(join.device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self._group = Group(join)
        self._checkpoint: Checkpoint | None = None
        self._fresh: Checkpoint | None = None
        self._networks: LocalNetworks | None = None

    def obey(self, message: Message) -> Ready | None:
        """Does what a message says. The answer to it, if there is one."""
        if isinstance(message, Forward):
            self._forward(message)
            return None
        if isinstance(message, Load):
            return self._load(message)
        if isinstance(message, Fetch):
            threading.Thread(target=self._fetch, args=(message,), daemon=True).start()
            return None
        if isinstance(message, Take):
            self._take()
        if isinstance(message, Open):
            self._open(message)
        return Ready()

    def _load(self, message: Load) -> Ready:
        self._networks = self._checkpoint = None
        self._checkpoint = load_checkpoint(message.path, message.options)
        self._checkpoint.make_tensor_parallel(self._group.total)
        return Ready(memory_of(self._device))

    def _open(self, message: Open) -> None:
        if self._checkpoint is None:
            raise AssertionError("networks are to be opened before a checkpoint is loaded")
        self._networks = None  # its cache makes room for the next one
        execution = Execution(message.attention, cuda_graphs=False)
        self._networks = LocalNetworks(self._checkpoint, message.num_pages, message.shapes, execution)

    def _fetch(self, message: Fetch) -> None:
        """On a thread of its own, beside forwards."""
        self._fresh, problem = None, None
        try:
            if self._checkpoint is None:
                raise AssertionError("weights are to be fetched before a checkpoint is loaded")
            self._fresh = load_update(message.path, self._checkpoint.config, message.options)
        except MrpServeError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - rank 0 says what it was
            problem = EngineFailed(f"weights could not be read: {kind_and_place(error)}")
        with suppress(EOFError):  # then this process ends
            self._say(Ready(problem=problem))

    def _take(self) -> None:
        if self._checkpoint is None or self._fresh is None:
            raise AssertionError("weights are to be taken before they are fetched")
        apply_update(self._checkpoint, self._fresh)
        self._fresh = None

    @torch.inference_mode()
    def _forward(self, message: Forward) -> None:
        if self._networks is None or self._checkpoint is None:
            raise AssertionError("a forward is to be made before networks are open")
        group = message.group
        if message.which == "mrp":
            config = self._checkpoint.config
            shape = (len(group.members), config.block_size, config.hidden_size)
            anchors = torch.empty(shape, device=self._device, dtype=self._checkpoint.dtype)
            self._group.share(anchors)
            states = States(anchors)
            rows = [row._replace(anchor=Anchor(states, number)) for number, row in enumerate(group.members)]
            group = type(group)(rows, group.places, group.width)
        self._networks.forward(message.which, group)


class _Process:
    """This process: it obeys until there is an error, which it reports, or until its channel closes.

    `folder`: of the ranks' store, which rank 0 cannot remove if it is killed.
    """

    def __init__(self, channel: Channel, folder: Path) -> None:
        self._channel, self._folder = channel, folder
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def run(self) -> NoReturn:
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self._channel.send(Ready())
            join = self._inbox.get()
            if not isinstance(join, Join):
                raise AssertionError("the first message is not the one to join")
            follower = Follower(join, self._channel.send)
            self._channel.send(Ready())
            while True:
                answer = follower.obey(self._inbox.get())
                if answer is not None:
                    self._channel.send(answer)
        except EOFError:
            self._end(0)
        except BaseException as error:  # noqa: BLE001 - rank 0 says what it was
            known = error if isinstance(error, MrpServeError) else kind_and_place(error)
            with suppress(EOFError):
                self._channel.send(Failed(known))
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
    _Process(Channel(socket.socket(fileno=int(sys.argv[1]))), Path(sys.argv[2])).run()
