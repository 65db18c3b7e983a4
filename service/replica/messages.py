"""What a replica and the process of its engine tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from service.constraints import Constraint, Owner
from service.decode.block_grammar import GrammarMatcher
from service.engine import EngineState, GenerationRequest
from service.engine.streams import Item
from service.errors import MrpServeError
from service.pickling import numbered
from service.replica.engines import Served
from service.settings import Settings

if TYPE_CHECKING:
    from service.engine import EngineDeps

# --- to the engine's process -----------------------------------------------------------------------


class Start(NamedTuple):
    """The first message: what is to be loaded. `deps`: of the engine, if not the default ones."""

    settings: Settings
    deps: EngineDeps | None


@numbered(250)
class Submit(NamedTuple):
    """A request that is valid. Its grammar, if it has one, is a `KeptGrammar`."""

    request: GenerationRequest


class Abort(NamedTuple):
    """A request is no longer wanted."""

    request_id: str


class Compile(NamedTuple):
    """To be compiled, for requests that come."""

    constraint: Constraint
    owner: Owner


class Check(NamedTuple):
    """Whether other weights could be taken?"""

    model: str


class Fetch(NamedTuple):
    """Other weights are to be read."""

    model: str


class Take(NamedTuple):
    """The fetched weights are to be taken."""

    version: int
    cut: bool


class Ask(NamedTuple):
    """Something that has an `Answered` with the same number."""

    number: int
    what: Compile | Check | Fetch | Take


# --- from the engine's process ---------------------------------------------------------------------


class Ready(NamedTuple):
    """The engine is loaded and takes requests."""

    served: Served


class Unloaded(NamedTuple):
    """The engine could not be loaded, and its process ends. `error`: one of ours, or what is known of another."""

    error: MrpServeError | str


@numbered(249)
class Stepped(NamedTuple):
    """What happened since the last one. `items`: for those who follow the requests.

    `over`: requests that the engine no longer has, aborted ones included. `failure`: why the engine has stopped, None
    if it has not. `counted`: a pickle of what metrics are to be told (`Added`), opened later than the items. It
    is empty if the counts come with a later message.
    """

    items: list[tuple[str, Item]]
    over: list[str]
    state: EngineState
    failure: str | None
    counted: bytes = b""


class Alive(NamedTuple):
    """The process runs. Says so when nothing else is to be said."""


class Answered(NamedTuple):
    """What came of an `Ask`. `path`: of fetched weights."""

    number: int
    error: MrpServeError | None = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class KeptGrammar:
    """A grammar that the engine's process has compiled. Implements `CompiledGrammar` for requests that go there."""

    constraint: Constraint
    owner: Owner

    def open(self) -> GrammarMatcher:
        """Only the compiled grammar can be opened."""
        raise AssertionError("a grammar is to be opened outside of the process that compiled it")
