"""S2D2: self-speculation with the model's own blocks of one token as verifier.

Source: arXiv 2603.25702, and `SDAR/generate_ssd_policy.py` of phymhan/S2D2: the reading of a block drafts all of its
masked positions. The first unbroken span of them is verified from left to right by the same model with a token-causal
mask, where the token before a position is all that it sees. The accepted beginning is fixed, and one token more.
Verification is skipped where the expected number of accepted tokens, the sum of the products of exp(-beta times the
normalised entropy), is below a cost.

Here a row attends to its whole block, so the verifier reads the states that have only a beginning of the span, with
the masks behind it in sight. That is one row a position, and exactly what `sequential` reads: the output is
`sequential`'s. The published verifier is the same checkpoint with `block_size: 1` (`s2d2_verifier.py`).
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import exp, log
from operator import mul
from typing import Annotated, ClassVar

from dev.lab.rules.method import Method
from service.decode.block import Block, Pick
from service.decode.canvas import Canvas
from service.decode.knobs import Knob
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate, Prediction
from service.decode.rules import LeftToRight, Rule

_VOCABULARY = 1024
_COST = Knob(float, "tokens that a verification must be expected to gain; 0: it is never skipped", least=0)
_BETA = Knob(float, "how fast the estimated acceptance falls with entropy", least=0)


class S2d2(DecodingMode, frozen=True):
    """Drafts by the last reading, verified from left to right, at most `span` of them at once."""

    mode: ClassVar[str] = "s2d2"
    span: Annotated[int, Knob(int, "most positions verified at once", least=1, in_block=True)] = 16
    cost: Annotated[float, _COST] = 0.0
    beta: Annotated[float, _BETA] = 1.0

    @property
    def rule(self) -> Rule:
        """From left to right. The estimate needs entropies."""
        return LeftToRight(1, 1e-9) if self.cost else LeftToRight(1)

    def decode(self, canvas: Canvas) -> Decoding:
        """The reading of the last accepted state drafts for the next round."""
        if canvas.block.complete:
            return
        (reading,) = yield Evaluate((canvas.block,))
        canvas.reveal("denoise", reading.picks[:1])
        while not canvas.block.complete:
            states = [canvas.block, *self._drafted(canvas, reading.of(canvas.block))]
            readings = yield Evaluate(tuple(states))
            reading, revealed = readings[0], [readings[0].picks[0]]
            for state, later in zip(states[1:], readings[1:], strict=True):
                if canvas.block.reveal(revealed) != state:
                    break
                reading = later
                revealed.append(later.picks[0])
            canvas.reveal("verify", revealed)

    def _drafted(self, canvas: Canvas, reading: Prediction) -> list[Block]:
        """The states that have 1, 2, … of the drafts, up to the answer's end."""
        span = _first_span(reading.picks)[: self.span]
        if self.cost and self._expected(reading, span) < self.cost:
            return []
        states: list[Block] = []
        for count in range(1, len(span) + 1):
            state = canvas.block.reveal(span[:count])
            if canvas.ends(state):
                break
            states.append(state)
        return states

    def _expected(self, reading: Prediction, span: tuple[Pick, ...]) -> float:
        """The expected number of accepted tokens (section on routing; `soft_entropy_negexp`, `difference_static`)."""
        entropies = dict(zip(reading.positions, reading.entropies, strict=True))
        likely = (exp(-self.beta * entropies[pick.position] / log(_VOCABULARY)) for pick in span)
        return sum(accumulate(likely, mul))


def _first_span(picks: tuple[Pick, ...]) -> tuple[Pick, ...]:
    """The picks up to the first gap."""
    for count, (one, other) in enumerate(pairwise(picks), start=1):
        if other.position != one.position + 1:
            return picks[:count]
    return picks


METHOD = Method(
    "s2d2",
    "arXiv 2603.25702",
    "drafts of the last reading, verified from left to right; output of `sequential`",
    (S2d2(4), S2d2(8), S2d2(16), S2d2(16, 2.0)),
)
