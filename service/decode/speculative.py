"""`speculative`: drafts verified by the backbone; the output equals `static`, token for token.

A round: K drafts make the states C(0) … C(K) of the block (each the one before plus a draft); one
forward evaluates them all; as long as the backbone's own static pick at C(j) equals draft j+1 it is
accepted; the pick at the first mismatch is added, so every forward yields at least one token. Source:
MRP paper, speculative decoding.

The first forward of a block fixes its pick at once (the published loop verifies that state twice).
"""

from collections.abc import Generator

from service.decode.block import Block, Canvas, Pick
from service.decode.params import Speculative
from service.decode.policy import Decoding, Evaluate, Query, Reading, Refine


def speculative(canvas: Canvas, params: Speculative) -> Decoding:
    """Decodes the canvas's block with up to 1 + `mrp_steps` tokens for every backbone forward."""
    (reading,) = yield Evaluate((canvas.block,))
    canvas.reveal("denoise", reading.most_confident())
    drafts = yield from _draft(canvas.block, reading, (), params.mrp_steps)
    while not canvas.block.complete:
        readings = yield Evaluate(_states(canvas.block, drafts))
        own = tuple(reading.most_confident()[0] for reading in readings)
        accepted = _agreement(own, drafts)
        canvas.reveal("verify", own[: accepted + 1], drafted=drafts, accepted=accepted)
        if canvas.block.complete:
            return
        reading = readings[accepted]
        first = _next_best(reading, canvas.block)
        drafts = yield from _draft(canvas.block, reading, (first,), params.mrp_steps)


def _draft(
    block: Block, reading: Reading, drafts: tuple[Pick, ...], steps: int
) -> Generator[Query, tuple[Reading, ...], tuple[Pick, ...]]:
    """Extends the drafts to `steps` picks, or to a complete block, each from MRP on the block so far."""
    while len(drafts) < min(steps, len(block.masked)):
        (reading,) = yield Refine(reading, block.reveal(drafts))
        drafts += reading.most_confident()
    return drafts


def _next_best(reading: Reading, block: Block) -> Pick:
    """The backbone's most confident pick among the positions masked since it was read."""
    left = Reading(tuple(pick for pick in reading.picks if pick.position in block.masked))
    return left.most_confident()[0]


def _states(block: Block, drafts: tuple[Pick, ...]) -> tuple[Block, ...]:
    """C(0), C(1), …: the block with the first 0, 1, … drafts, complete ones left out."""
    states = (block.reveal(drafts[:count]) for count in range(len(drafts) + 1))
    return tuple(state for state in states if not state.complete)


def _agreement(own: tuple[Pick, ...], drafts: tuple[Pick, ...]) -> int:
    """How many leading drafts are the backbone's own picks."""
    for count, (pick, draft) in enumerate(zip(own, drafts, strict=False)):
        if (pick.position, pick.token) != (draft.position, draft.token):
            return count
    return min(len(own), len(drafts))
