"""`remask` with other judges, other bounds and other orders: why the published one stays below `direct`.

Published (MRP paper, arXiv 2605.18817, remasking; `service/decode/modes/remask.py`): MRP reads the block with all fresh
tokens in place, and one bound is both the reveal bound and the doubt bound. The oracles ask the backbone instead of
MRP, so they cost what they save: they show what a perfect judge would reach. None of them is served.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from math import exp
from typing import Annotated, ClassVar, NamedTuple

from dev.lab.rules.method import Method
from service.decode.block import Block, Pick
from service.decode.canvas import Canvas
from service.decode.knobs import THRESHOLD, Knob
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate, Prediction, Query, Refine
from service.decode.rules import ConfidenceAbove, Rule


class Opinion(NamedTuple):
    """What a judge says of a fresh token. `probability`: of the token. `best`: whether no other token is likelier."""

    position: int
    probability: float
    best: bool


Judging = Generator[Query, tuple[Prediction, ...], tuple[Opinion, ...]]
Judge = Callable[[Block, Prediction, Sequence[Pick]], Judging]


def opinion_of(reading: Prediction, fresh: Pick) -> Opinion:
    """Of a reading in which the fresh token's position is masked. Needs `likeliest` of its plan."""
    pick = next(pick for pick in reading.picks if pick.position == fresh.position)
    listed = {token: exp(score) for token, score in (pick.logprobs.top if pick.logprobs else ())}
    listed[pick.token] = pick.confidence
    return Opinion(fresh.position, listed.get(fresh.token, 0.0), pick.token == fresh.token)


def nobody(_: Block, __: Prediction, fresh: Sequence[Pick]) -> Judging:
    """Takes nothing back: `dynamic`."""
    yield from ()
    return tuple(Opinion(pick.position, 1.0, best=True) for pick in fresh)


def mrp_together(block: Block, reading: Prediction, fresh: Sequence[Pick]) -> Judging:
    """The published judge: MRP reads all fresh tokens in their places, once."""
    (corrected,) = yield Refine(reading, block.reveal(fresh), rescore=tuple(pick.position for pick in fresh))
    return tuple(Opinion(pick.position, pick.confidence, pick.confidence > 0.5) for pick in corrected.rescored)


def mrp_each(block: Block, reading: Prediction, fresh: Sequence[Pick]) -> Judging:
    """MRP reads the block once for each fresh token: with this one masked and the others in place (leave-one-out)."""
    opinions = []
    for pick in fresh:
        (corrected,) = yield Refine(reading, block.reveal(fresh).remask([pick.position]))
        opinions.append(opinion_of(corrected, pick))
    return tuple(opinions)


def backbone_each(block: Block, _: Prediction, fresh: Sequence[Pick]) -> Judging:
    """An oracle: the backbone reads the block once for each fresh token, with this one masked."""
    states = (block.reveal(fresh).remask([pick.position]) for pick in fresh)
    _, *readings = yield Evaluate((block, *states))
    return tuple(opinion_of(reading, pick) for reading, pick in zip(readings, fresh, strict=True))


def backbone_in_turn(block: Block, _: Prediction, fresh: Sequence[Pick]) -> Judging:
    """An oracle: the backbone judges one fresh token after the other, given those before that it found best.

    This is what `static` would decide if it took these positions in this order.
    """
    first, *others = fresh
    opinions, state = [Opinion(first.position, first.confidence, best=True)], block.reveal([first])
    for pick in others:
        _, reading = yield Evaluate((block, state))
        opinions.append(opinion_of(reading, pick))
        if opinions[-1].best:
            state = state.reveal([pick])
    return tuple(opinions)


def mrp_in_turn(block: Block, reading: Prediction, fresh: Sequence[Pick]) -> Judging:
    """MRP judges one fresh token after the other, on its own last reading, as `direct` chains them."""
    first, *others = fresh
    opinions, state = [Opinion(first.position, first.confidence, best=True)], block.reveal([first])
    for pick in others:
        (reading,) = yield Refine(reading, state)
        opinions.append(opinion_of(reading, pick))
        if opinions[-1].best:
            state = state.reveal([pick])
    return tuple(opinions)


JUDGES: Mapping[str, Judge] = {
    judge.__name__: judge for judge in (nobody, mrp_together, mrp_each, mrp_in_turn, backbone_each, backbone_in_turn)
}
_JUDGE = Knob(str, "who judges the fresh tokens", choices=tuple(JUDGES))
_DECIDE = Knob(str, "below: probability below the doubt; best: another token is likelier", choices=("below", "best"))
_ORDER = Knob(str, "of the fresh tokens, for judges that take turns", choices=("sure", "left"))


class JudgedRemask(DecodingMode, frozen=True):
    """Reveals above `threshold`; then `judge` takes back tokens: of probability below `doubt`, or not the likeliest.

    At least one token stays, the likeliest by the judge.
    """

    mode: ClassVar[str] = "judged-remask"
    likeliest: ClassVar[int] = 8
    threshold: Annotated[float, THRESHOLD] = 0.3
    doubt: Annotated[float | None, THRESHOLD] = None
    judge: Annotated[str, _JUDGE] = "mrp_together"
    decide: Annotated[str, _DECIDE] = "below"
    order: Annotated[str, _ORDER] = "sure"

    @property
    def needs_mrp(self) -> bool:
        """Of MRP's judges."""
        return self.judge.startswith("mrp")

    @property
    def rule(self) -> Rule:
        """The positions above the threshold."""
        return ConfidenceAbove(self.threshold)

    def decode(self, canvas: Canvas) -> Decoding:
        """As `remask`."""
        while not canvas.block.complete:
            (reading,) = yield Evaluate((canvas.block,))
            fresh = self._ordered(self.rule(reading))
            opinions: tuple[Opinion, ...] = ()
            if len(fresh) > 1:
                opinions = yield from JUDGES[self.judge](canvas.block, reading, fresh)
            canvas.reveal("denoise", fresh)
            if revoked := self._revoked(opinions):
                canvas.remask("mrp", revoked)

    def _ordered(self, fresh: tuple[Pick, ...]) -> tuple[Pick, ...]:
        return fresh if self.order == "left" else tuple(sorted(fresh, key=lambda pick: -pick.confidence))

    def _revoked(self, opinions: tuple[Opinion, ...]) -> tuple[int, ...]:
        if not opinions:
            return ()
        keep = max(opinions, key=lambda one: one.probability).position
        bound = self.threshold if self.doubt is None else self.doubt
        bad = (one for one in opinions if (not one.best if self.decide == "best" else one.probability < bound))
        return tuple(one.position for one in bad if one.position != keep)


METHOD = Method(
    "judged remask",
    "arXiv 2605.18817; the mends: ours",
    "`remask` with two bounds, or with a judge that sees less",
    (
        JudgedRemask(0.1, 0.5),
        JudgedRemask(0.3, 0.5),
        *(JudgedRemask(value, judge="mrp_each", decide="best") for value in (0.1, 0.3)),
        *(JudgedRemask(value, judge="mrp_in_turn", decide="best") for value in (0.1, 0.3)),
        JudgedRemask(0.1, judge="mrp_in_turn", decide="best", order="left"),
    ),
)
