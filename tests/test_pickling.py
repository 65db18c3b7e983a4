"""What is sent often comes back equal, as every other dataclass does."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

import pytest

from service.decode.block import Pick, Step
from service.engine import BlockEvent, EngineState, Forwards, GenerationRequest, Stats
from service.link.messages import Item
from service.pickling import numbered, sent_often
from service.replica.messages import Stepped
from service.wire import Chunk, Ending, Resume, Weights

STATS = Stats(Forwards(1, 2, 3), 7, mrp_steps=2, first_block_s=0.25)
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
        Chunk(1, "text", (5,), STATS, ending=Ending("stop", 2, 1, STATS)),
        Item(3, Chunk(1, "text", (5,), STATS), 2),
        Stepped([("a", BlockEvent("a", 3, (5, 6), STATS))], ["b"], EngineState(1, 2, 3, 4), None, b"x"),
        Resume((1, 2), 1, STATS, version=2),
        Weights(3, "name", "folder"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_it_comes_back_equal(value: object) -> None:
    again = pickle.loads(pickle.dumps(value))
    assert again == value
    assert type(again) is type(value)


def test_defaults_at_the_end_are_left_out() -> None:
    assert Weights(3, "name").__reduce__()[1] == (3, "name")
    assert Weights(0, "name").__reduce__()[1] == (0, "name")
    assert Weights().__reduce__()[1] == ()
    assert Resume((1,), 0, Stats(), 2).__reduce__()[1] == ((1,), 0, Stats(), 2)


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
    pickled = pickle.dumps(Item(3, Chunk(1, "text", (5,), STATS), 2))
    assert b"service" not in pickled


@pytest.mark.parametrize("code", [239, 256, 240])
def test_a_number_that_is_taken_or_not_ours_is_refused(code: int) -> None:
    with pytest.raises(ValueError, match=str(code)):

        @numbered(code)
        class Other:
            pass
