"""The moments of an answer while its blocks are filled, from which the pictures of decoding are drawn.

The moments are made only from the steps of a trace.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from service.decode.block import Pick, Step

#: `prompt`: part of the prompt. `draft`: proposed, not verified yet. `new`: fixed in this moment. `old`: fixed before.
State = Literal["prompt", "masked", "draft", "new", "old"]
#: who proposed the token of a cell: the backbone, a draft that was accepted, or MRP unverified; names of `states.json`
Source = Literal["backbone", "accepted", "mrp"]
#: the kinds of steps that read the backbone
_BACKBONE = ("denoise", "verify")


@dataclass(frozen=True, slots=True)
class Cell:
    """One position. `when`: the backbone forwards that fixed it; several if it was masked again."""

    state: State = "masked"
    text: str = ""
    source: Source = "backbone"
    when: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """All blocks `[B, L]` at one moment, and the number of backbone forwards so far."""

    blocks: tuple[tuple[Cell, ...], ...]
    forwards: int

    @property
    def fixed(self) -> int:
        return sum(cell.state in {"new", "old"} for block in self.blocks for cell in block)


@dataclass(frozen=True, slots=True)
class Answer:
    """One decoded answer: its mode and the steps of each block `[B]`.

    `prompt`: positions of the first block that hold the prompt. `length`: positions of the answer, with its end token.
    Tokens after the end are not shown.
    """

    title: str
    blocks: Sequence[Sequence[Step]]
    block_size: int
    prompt: int
    length: int
    mrp_forwards: int = 0

    @property
    def forwards(self) -> int:
        return sum(step.kind in _BACKBONE for steps in self.blocks for step in steps)


def moments(answer: Answer, text_of: Callable[[int], str]) -> list[Moment]:
    """Every moment of an answer, from empty blocks to full ones. `text_of`: the text of a token id."""
    empty = [[Cell() for _ in range(answer.block_size)] for _ in answer.blocks]
    empty[0][: answer.prompt] = [Cell("prompt")] * answer.prompt
    film = _Film(empty, answer.prompt + answer.length, text_of)
    return [film.now(), *(moment for index, steps in enumerate(answer.blocks) for moment in film.run(index, steps))]


def at(moments: Sequence[Moment], forwards: int, *, drafted: bool = False) -> Moment:
    """The moment right after `forwards` forwards. With `drafted`: the last moment before the next forward."""
    before = [moment for moment in moments if moment.forwards < forwards]
    just = [moment for moment in moments if moment.forwards == forwards]
    if drafted or not just:
        return (before + just)[-1]
    return just[0]


class _Film:
    """The blocks while they are filled."""

    def __init__(self, blocks: list[list[Cell]], end: int, text_of: Callable[[int], str]) -> None:
        self._blocks = blocks
        self._end = end
        self._text_of = text_of
        self._forwards = 0

    def now(self) -> Moment:
        return Moment(tuple(tuple(block) for block in self._blocks), self._forwards)

    def run(self, index: int, steps: Sequence[Step]) -> Iterator[Moment]:
        for step in steps:
            self._settle()
            if step.drafted:
                self._write(index, step.drafted, "draft", ("accepted", len(step.drafted)))
                yield self.now()
            self._forwards += step.kind in _BACKBONE
            self._unmask(index, step)
            self._write(index, step.revealed, "new", ("mrp" if step.kind == "mrp" else "accepted", step.proposed))
            yield self.now()

    def _settle(self) -> None:
        self._blocks = [
            [replace(cell, state="old") if cell.state == "new" else cell for cell in block] for block in self._blocks
        ]

    def _unmask(self, index: int, step: Step) -> None:
        block = self._blocks[index]
        for position, cell in enumerate(block):
            if cell.state == "draft" or position in step.remasked:
                block[position] = Cell(when=cell.when)
        if step.moved:
            self._blocks[index] = [Cell() if source < 0 else block[source] for source in step.moved]

    def _write(self, index: int, picks: Sequence[Pick], state: State, proposed: tuple[Source, int]) -> None:
        block = self._blocks[index]
        for rank, pick in enumerate(picks):
            position = pick.position
            if index * len(block) + position >= self._end:
                continue
            source: Source = proposed[0] if rank < proposed[1] else "backbone"
            when = block[position].when if state == "draft" else (*block[position].when, self._forwards)
            block[position] = Cell(state, self._text_of(pick.token), source, when)
