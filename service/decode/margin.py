"""Margin-aware verification: a drafted step that the backbone finds nearly as good as the rule's own is accepted, too.

`speculative` calls it if its `margin` is set. The output is then no longer that of the verified mode.

Source: MARS (arXiv 2601.15498, section 3), and `evaluate_posterior` of its code: where the target's second token is
nearly as good as its first, a draft that is one of the two is accepted. Elsewhere the draft must be the target's own
choice. The paper compares raw logits. Their ratio changes if a constant is added to all of them, so probabilities are
compared here. In the paper the next position is given. Where the rule chooses positions, they have a margin here, too:
this part is our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp

from service.decode.block import Block, Pick
from service.decode.canvas import Canvas
from service.decode.drafting import Drafts
from service.decode.policy import Prediction
from service.decode.rules import Rule

#: the likeliest tokens of each position that a reading must tell (`Evaluate.likeliest`)
LIKELIEST = 2


@dataclass(frozen=True, slots=True)
class Near:
    """What a walk over drafted states picks at each of them. `margin`: a share of a probability, above 0, up to 1."""

    canvas: Canvas
    rule: Rule
    drafts: Drafts
    margin: float

    def __call__(self, reading: Prediction, block: Block) -> tuple[Pick, ...]:
        """The rule's own picks, or those of the first drafted step that is near enough if the own were not drafted.

        `reading`: of `block`, with the two likeliest tokens of each position.
        """
        own = self.canvas.choose(self.rule, reading, block)
        if self.canvas.after(block, own) in self.drafts:
            return own
        read = {pick.position: pick for pick in reading.picks}
        following = (
            draft.picks for state, draft in self.drafts.items() if self.canvas.leads(block, draft.picks, state)
        )
        return next(filter(None, (_accepted(read, step, own, self.margin) for step in following)), own)


def _accepted(
    read: Mapping[int, Pick], drafted: Sequence[Pick], own: Sequence[Pick], margin: float
) -> tuple[Pick, ...]:
    """The drafted step with the backbone's confidences. Empty if one of its tokens is not near enough.

    A token at a position that the rule does not pick needs more than `margin` times the least confidence of the rule's
    picks.
    """
    least, places = min(pick.confidence for pick in own), {pick.position for pick in own}
    found = []
    for position, token, *_ in drafted:
        if position not in read or (chance := _chance(read[position], token, margin)) is None:
            return ()
        if position not in places and chance <= margin * least:
            return ()
        found.append(Pick(position, token, chance, read[position].known))
    return tuple(found)


def _chance(read: Pick, token: int, margin: float) -> float | None:
    """The probability of a drafted token that the backbone chose itself, or that its margin leaves open. Else None."""
    if token == read.token:
        return read.confidence
    scores = dict(read.known.top[:LIKELIEST]) if read.known else {}
    if token not in scores or len(scores) < LIKELIEST:
        return None
    first, second = scores.values()  # natural logarithms, descending
    return exp(scores[token]) if exp(second - first) > margin else None
