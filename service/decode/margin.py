"""Margin-aware verification: a drafted step that the backbone finds nearly as good as the rule's own is accepted, too.

`speculative` calls it if its `margin` is set. The output is then no longer that of the verified mode.

Source: MARS (arXiv 2601.15498, section 3), and `evaluate_posterior` of its code: where the target's second token is
nearly as good as its first, a draft that is one of the two is accepted. Elsewhere the draft must be the target's own
choice. The paper compares raw logits. Their ratio changes if a constant is added to all of them, so probabilities are
compared here. In the paper the next position is fixed. Where the rule chooses positions, they have a margin here, too:
this part is our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp

from service.decode.block import Block, Pick
from service.decode.canvas import Canvas
from service.decode.drafts import Drafts
from service.decode.policy import Prediction
from service.decode.rules import Rule

#: the likeliest tokens of each position that a prediction must have (`Evaluate.top_logprobs`)
TOP_LOGPROBS = 2


@dataclass(frozen=True, slots=True)
class MarginAcceptance:
    """Chooses the picks at each state of a walk over drafts. `margin`: a share of a probability, above 0, up to 1."""

    canvas: Canvas
    rule: Rule
    drafts: Drafts
    margin: float

    def __call__(self, prediction: Prediction, block: Block) -> tuple[Pick, ...]:
        """The rule's picks if they were drafted. Else the first drafted step that is near enough, or the rule's picks.

        `prediction`: the prediction of `block`, with the two likeliest tokens of each position.
        """
        picks = self.canvas.choose(self.rule, prediction, block)
        if self.canvas.after(block, picks) in self.drafts:
            return picks
        predicted = {pick.position: pick for pick in prediction.picks}
        following = (
            draft.picks for state, draft in self.drafts.items() if self.canvas.leads(block, draft.picks, state)
        )
        accepted = (_accepted(predicted, step, picks, self.margin) for step in following)
        return next(filter(None, accepted), picks)


def _accepted(
    predicted: Mapping[int, Pick], drafted: Sequence[Pick], picks: Sequence[Pick], margin: float
) -> tuple[Pick, ...]:
    """The drafted step with the backbone's confidences. Empty if one of its tokens is not near enough.

    A token at a position that the rule does not pick needs more than `margin` times the least confidence of the rule's
    `picks`.
    """
    least, positions = min(pick.confidence for pick in picks), {pick.position for pick in picks}
    accepted = []
    for position, token, *_ in drafted:
        if position not in predicted or (chance := _chance(predicted[position], token, margin)) is None:
            return ()
        if position not in positions and chance <= margin * least:
            return ()
        accepted.append(Pick(position, token, chance, predicted[position].logprobs))
    return tuple(accepted)


def _chance(predicted: Pick, token: int, margin: float) -> float | None:
    """The probability of a drafted token that is the backbone's own or within the margin. Else None."""
    if token == predicted.token:
        return predicted.confidence
    scores = dict(predicted.logprobs.top[:TOP_LOGPROBS]) if predicted.logprobs else {}
    if token not in scores or len(scores) < TOP_LOGPROBS:
        return None
    first, second = scores.values()  # natural logarithms, descending
    return exp(scores[token]) if exp(second - first) > margin else None
