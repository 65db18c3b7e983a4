"""What an ingress and a replica tell each other over a link. Types that neither may send are refused."""

from __future__ import annotations

from typing import Literal

from service.data import Data
from service.messagepack import MessagePack
from service.wire import Chunk, Ending, Failure, Progress, ReplicaRequest

Method = Literal["count", "stream"]


class ReplicaCall(Data, frozen=True, tag=1):
    """An ingress calls. `number`: the name of the call on this link."""

    number: int
    method: Method
    request: ReplicaRequest


class CancelCall(Data, frozen=True, tag=2):
    """An ingress needs nothing more of a call."""

    number: int


class CallItem(Data, frozen=True, tag=3):
    """A part of an answer, or a number of tokens. `others`: requests of other ingresses that the replica has."""

    number: int
    item: Progress | Chunk | Ending | Failure | int
    others: int


class CallEnd(Data, frozen=True, tag=4):
    """A call has no further items."""

    number: int


class CallRefused(Data, frozen=True, tag=5):
    """A call came after the replica had begun to drain. Nothing was decoded."""

    number: int


class DrainNotice(Data, frozen=True, tag=6):
    """The replica drains: it takes no further calls and finishes those that it has."""


class ReplicaAlive(Data, frozen=True, tag=7):
    """The replica runs. Sent regularly, so that a link never falls silent."""


#: the codecs of the two ends, by what comes there
AT_REPLICA = MessagePack(ReplicaCall | CancelCall)
AT_INGRESS = MessagePack(CallItem | CallEnd | CallRefused | DrainNotice | ReplicaAlive)
