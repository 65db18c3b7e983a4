"""What an ingress and a replica tell each other over a link."""

from __future__ import annotations

from typing import Literal, NamedTuple

from service.pickling import numbered
from service.wire import Answer, Chunk, Ending, Failure, Progress, Work

Method = Literal["complete", "count", "stream"]


@numbered(242)
class Call(NamedTuple):
    """An ingress asks. `number`: by which both sides name the call."""

    number: int
    method: Method
    work: Work


class Cancel(NamedTuple):
    """An ingress needs nothing more of a call."""

    number: int


@numbered(240)
class Item(NamedTuple):
    """A part of an answer, or all of it. `others`: requests of other ingresses that the replica has."""

    number: int
    item: Progress | Chunk | Ending | Failure | Answer | int
    others: int


@numbered(241)
class End(NamedTuple):
    """A call has no further items."""

    number: int


class Refused(NamedTuple):
    """A call came after the replica had begun to leave. Nothing was decoded."""

    number: int


class Alive(NamedTuple):
    """The replica runs. The first message of every link, then one whenever nothing else is to be said."""


class Leaving(NamedTuple):
    """The replica takes no further calls and finishes those it has."""


Message = Call | Cancel | Item | End | Refused | Alive | Leaving
