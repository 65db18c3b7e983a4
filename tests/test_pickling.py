"""What is pickled, and where: between a process and its child alone."""

from __future__ import annotations

import ast
import pickle
from dataclasses import dataclass, field
from functools import lru_cache

import pytest

from service.decode.block import Pick, Step
from service.engine import BlockEvent, EngineState, ForwardCounts, GenerationRequest, Stats
from service.engine.request import BlockProgress
from service.pickling import PICKLED, numbered, sent_often
from service.replica.messages import Stepped
from service.wire import Answer, Chunk, Ending
from tests.test_imports import imported, modules, within

STATS = Stats(ForwardCounts(1, 2, 3), 7, mrp_steps=2, first_block_s=0.25)
STEPS = (
    Step("denoise", (Pick(0, 5, 0.5),)),
    Step("verify", (Pick(1, 6, 1.0),), drafted=(Pick(1, 6, 0.75),), accepted=1),
)


@pytest.mark.parametrize(
    "value",
    [
        BlockEvent("a", 3, (5, 6), STATS, "stop", STEPS, constraint_met=True, version=4),
        GenerationRequest("a", (1, 2), max_new_tokens=3, tenant="b", stop_token_ids=frozenset({9})),
        EngineState(1, 2, 3, 4),
        Chunk(1, "text", (5,), STATS, ending=Ending("stop", 2, 1, STATS)),  # by Serve's handles
        Stepped([("a", BlockEvent("a", 3, (5, 6), STATS))], ["b"], EngineState(1, 2, 3, 4), None, b"x"),
        BlockProgress("a", 3, 4, STEPS, 0.5),
        Answer("text", (5,), Ending("stop", 2, 1, STATS)),  # by Serve's handles
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_comes_back_equal(value: object) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert again == value
    assert type(again) is type(value)


def test_defaults_at_the_end_are_left_out() -> None:
    assert BlockProgress("a", 3, 4, STEPS, 0.5).__reduce__()[1] == ("a", 3, 4, STEPS, 0.5)
    assert BlockProgress("a", 3, 4, STEPS).__reduce__()[1] == ("a", 3, 4, STEPS)
    assert BlockEvent("a", 3, (5,), STATS, version=1).__reduce__()[1][-2:] == ((), 1)


@sent_often
@dataclass(frozen=True, slots=True)
class _Checked:
    first: int
    second: int

    def __post_init__(self) -> None:
        if self.second < self.first:
            raise ValueError(self.first)


def test_it_is_checked_again() -> None:
    wrong = object.__new__(_Checked)
    object.__setattr__(wrong, "first", 2)
    object.__setattr__(wrong, "second", 1)
    with pytest.raises(ValueError, match="2"):
        pickle.loads(pickle.dumps(wrong))


def test_what_cannot_be_made_of_its_values_is_refused() -> None:
    @dataclass
    class Derived:
        first: int
        second: int = field(init=False, default=0)

    @dataclass
    class One:
        first: int

    for kind in (Derived, One):
        with pytest.raises(ValueError, match=kind.__name__):
            sent_often(kind)


def test_a_number_names_a_class() -> None:
    pickled = pickle.dumps(Stepped([("a", BlockEvent("a", 3, (5, 6), STATS))], [], EngineState(1, 2, 3, 4), None))
    assert b"service" not in pickled


@pytest.mark.parametrize("code", [239, 256, 255])
def test_a_number_that_is_taken_or_not_ours_is_refused(code: int) -> None:
    with pytest.raises(ValueError, match=str(code)):

        @numbered(code)
        class Other:
            pass


def test_messages_of_a_frame_come_back_in_their_order() -> None:
    messages = [1, "two", STATS]
    assert PICKLED.decode(PICKLED.content([PICKLED.encode(one) for one in messages])) == messages


#: module -> why it may pickle
ALLOWED = {
    "service.pickling": "the codec of pairs of sockets that a replica and its engine's process have inherited",
    "service.parallel.channel": "a pair of sockets that rank 0 and a rank have inherited",
    "service.replica.process": "counts, sent over the pair of sockets to the replica",
    "service.replica.remote": "the same counts, opened later than the items",
}
#: what can make code or any class of bytes
LIBRARIES = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "copyreg", "ray.cloudpickle"}


@lru_cache
def _imports() -> list[tuple[str, str]]:
    """Module and what it imports, of the whole service."""
    texts = [(module, path.read_text("utf-8")) for module, path in modules().items() if module.startswith("service")]
    return [(module, name) for module, text in texts for name in imported(ast.parse(text))]


def users_of(names: set[str]) -> set[str]:
    """The modules of the service that import one of these, or a part of it."""
    return {module for module, name in _imports() if any(within(name, one) for one in names)}


def test_nothing_else_pickles() -> None:
    assert users_of(LIBRARIES) == set(ALLOWED)


def test_only_pairs_of_sockets_take_pickles() -> None:
    """It runs code of the sender's choice, so no connection that others can reach may have it."""
    names = {"service.pickling.PICKLED", "service.pickling.Pickled"}
    assert users_of(names) == {"service.replica.process", "service.replica.remote"}
