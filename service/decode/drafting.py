"""Drafts for `speculative`: states that the decoding of a block is likely to pass through, to be verified.

`chain` is the published method: one draft after the other, each from MRP (MRP paper, speculative decoding). `tree`
(`tree.py`) chooses the states with the highest estimated likelihood that are worth their cost. Without MRP it drafts
from the backbone's last reading only, as FreeDave's self-drafting does. Drafts do not change the output: they are only
compared with the backbone's own picks.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

from service.decode.block import Block, Pick, make
from service.decode.canvas import Canvas
from service.decode.policy import Query, Prediction, Refine
from service.decode.rules import Rule


class Draft(NamedTuple):
    """A state to be verified: the picks that lead to it from the state before.

    `number`: its place among the drafts, from 1 on. `promise`: the expected number of tokens gained by verifying it; 0
    in a chain, where it is not estimated.
    """

    number: int
    picks: tuple[Pick, ...]
    promise: float = 0.0


#: in the order of their numbers
Drafts = Mapping[Block, Draft]
Drafting = Generator[Query, tuple[Prediction, ...], Drafts]


def chain(canvas: Canvas, reading: Prediction, steps: int, rule: Rule, *, first: bool) -> Drafting:
    """A chain of up to `steps` states, each with one more draft than the one before. Ends at a complete state.

    `reading`: of the state before the canvas's. `first`: the first round of a block, whose first draft is MRP's. Later
    rounds begin with the picks of `reading`.
    """
    block, drafts = canvas.block, dict[Block, Draft]()
    picks = () if first else canvas.choose(rule, reading.of(block), block)
    while len(drafts) < steps and not block.complete:
        if not picks:
            (reading,) = yield make(Refine, (reading, block, ()))
            if not (picks := canvas.choose(rule, reading, block)):
                break  # the answer has ended
        block = canvas.after(block, picks)
        drafts[block], picks = Draft(len(drafts) + 1, picks), ()
    return drafts
