"""The first draft of a chain: from the backbone's last reading, which is older than the last pick, or from MRP.

Published (MRP paper, arXiv 2605.18817, speculative decoding; `service/decode/drafts.py`, `chain`): after a block's
first round the first draft is the best pick left in the backbone's last reading. The mends tried here keep the chain.
All verify against `static`, so all give its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

from dev.lab.rules.method import Method
from service.decode.block import Pick
from service.decode.canvas import Canvas
from service.decode.drafts import Draft, Drafting
from service.decode.knobs import THRESHOLD, Knob
from service.decode.mode import DecodingMode
from service.decode.modes.speculative import _walk
from service.decode.policy import Decoding, Evaluate, Prediction, Query, Refine
from service.decode.rules import Rule, TopConfidence

_RULE = TopConfidence(1)


class FirstDraft(NamedTuple):
    """One first draft by each source, and what the backbone then picked. `pick`s are (position, token)."""

    stale: Pick
    fresh: Pick | None
    right: Pick


Chosen = Generator[Query, tuple[Prediction, ...], tuple[Prediction, Pick]]


def _stale(_: Canvas, reading: Prediction, __: Chained) -> Chosen:
    yield from ()
    return reading, _RULE(reading)[0]


def _fresh(canvas: Canvas, reading: Prediction, _: Chained) -> Chosen:
    (refined,) = yield Refine(reading, canvas.block)
    return refined, _RULE(refined)[0]


def _surer(canvas: Canvas, reading: Prediction, params: Chained) -> Chosen:
    refined, fresh = yield from _fresh(canvas, reading, params)
    stale = _RULE(reading)[0]
    return refined, max(fresh, stale, key=lambda pick: pick.confidence)


def _in_doubt(canvas: Canvas, reading: Prediction, params: Chained) -> Chosen:
    stale = _RULE(reading)[0]
    if stale.confidence > params.sure:
        return reading, stale
    return (yield from _fresh(canvas, reading, params))


#: name -> which reading the first draft comes from
SOURCES: Mapping[str, Callable[[Canvas, Prediction, Chained], Chosen]] = {
    "stale": _stale,
    "fresh": _fresh,
    "surer": _surer,
    "in_doubt": _in_doubt,
    "both": _fresh,
}
_FIRST = Knob(
    str,
    "stale: the published order. fresh: MRP's. surer: of both. in_doubt: stale if it is surer than `sure`, else fresh."
    " both: fresh, and the stale one beside it",
    choices=tuple(SOURCES),
)


class Chained(DecodingMode, frozen=True):
    """`speculative` with a chain of `drafts` states whose first draft comes from `first`."""

    mode: ClassVar[str] = "chain"
    #: what was seen, if somebody wants it; `first_drafts.py` does
    seen: ClassVar[list[FirstDraft]] = []
    drafts: Annotated[int, Knob(int, "states of the chain", least=1, in_block=True)] = 4
    first: Annotated[str, _FIRST] = "stale"
    sure: Annotated[float, THRESHOLD] = 0.9

    @property
    def needs_mrp(self) -> bool:
        """Always."""
        return True

    @property
    def rule(self) -> Rule:
        """Static's."""
        return _RULE

    def decode(self, canvas: Canvas) -> Decoding:
        """As `speculative`."""
        if canvas.block.complete:
            return
        (reading,) = yield Evaluate((canvas.block,))
        canvas.reveal("denoise", _RULE(reading))
        source = "fresh"  # a block's first round has no stale reading that is older than one pick
        while not canvas.block.complete:
            drafts = yield from self._chain(canvas, reading.of(canvas.block), source)
            states = [canvas.block, *drafts]
            while len(states) > 1 and canvas.ends(states[-1]):
                states.pop()
            readings = yield Evaluate(tuple(states))
            reading, source = _walk(canvas, readings, drafts, partial(canvas.choose, _RULE)), self.first

    def _chain(self, canvas: Canvas, reading: Prediction, source: str) -> Drafting:
        stale = _RULE(reading)[0]
        reading, pick = yield from SOURCES[source](canvas, reading, self)
        block = canvas.after(canvas.block, (pick,))
        drafts = {block: (pick,)}
        while len(drafts) < self.drafts and not block.complete:
            (reading,) = yield Refine(reading, block)
            pick = _RULE(reading)[0]
            block = canvas.after(block, (pick,))
            drafts[block] = (pick,)
        beside = canvas.after(canvas.block, (stale,))
        if source == "both" and not canvas.ends(beside):
            drafts = {beside: (stale,), **drafts}
        return {state: Draft(number, picks) for number, (state, picks) in enumerate(drafts.items(), 1)}


class Watched(Chained, frozen=True):
    """`static`, which notes at every state what both sources would have drafted and what was right."""

    mode: ClassVar[str] = "watched"

    def decode(self, canvas: Canvas) -> Decoding:
        """One pick a forward."""
        drafted: tuple[Pick, Pick] | None = None
        while not canvas.block.complete:
            (reading,) = yield Evaluate((canvas.block,))
            (right,) = _RULE(reading)
            if drafted is not None:
                self.seen.append(FirstDraft(*drafted, right))
            canvas.reveal("denoise", (right,))
            if canvas.ends(canvas.block):
                continue
            (refined,) = yield Refine(reading, canvas.block)
            drafted = _RULE(reading.of(canvas.block))[0], _RULE(refined)[0]


METHOD = Method(
    "first draft",
    "arXiv 2605.18817; the mends: ours",
    "a chain of four whose first draft comes from another reading",
    (*(Chained(4, first) for first in ("stale", "fresh", "surer", "both")), Chained(4, "in_doubt", 0.9)),
)
