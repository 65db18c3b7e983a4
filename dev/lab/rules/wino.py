"""WINO, wide in and narrow out (arXiv 2507.18578): reveal many, and take back what the others then make unlikely.

`decoding_wino` of the authors, as in Kamichanw/d2Cache (`wino_official.py`). A position is revealed above `wide`. Each
forward also reads every token revealed before as if it were masked. If more than one position was just revealed, tokens
whose probability is below `narrow` are masked again: fewer than were revealed by the forward before. The published
forward has a second, masked copy of the block for that. Here each such reading is a row of its own, so the price in
rows is higher than published. A block's tokens stay off the canvas until it is full, since an answer may end with a
token on the canvas.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from dev.lab.rules.method import NUMBER, Method
from service.decode.block import Pick
from service.decode.canvas import Canvas
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate, Prediction
from service.decode.rules import ConfidenceAbove, Rule

#: the most positions that one forward reveals: a share of the masked ones, between two numbers
_SHARE, _LEAST, _MOST = 0.7, 5, 20


class Wino(DecodingMode, frozen=True):
    """Reveal above `wide`, take back below `narrow` (at least 0.5)."""

    mode: ClassVar[str] = "wino"
    wide: Annotated[float, NUMBER] = 0.6
    narrow: Annotated[float, NUMBER] = 0.9

    @property
    def rule(self) -> Rule:
        """The positions above the wide threshold."""
        return ConfidenceAbove(self.wide)

    def decode(self, canvas: Canvas) -> Decoding:
        """A forward over the state and, for each of its own tokens, the state without it."""
        state, own, last = canvas.block, dict[int, Pick](), 30
        while not canvas.ends(state):
            reading, *others = yield Evaluate((state, *(state.remask((place,)) for place in own)))
            doubts = {place: _doubt(own[place], other) for place, other in zip(own, others, strict=True)}
            fresh = self._fresh(reading)
            refused = self._refused(doubts, last) if len(fresh) > 1 else []
            own.update((pick.position, pick) for pick in fresh)
            state = state.reveal(fresh).mask(refused)
            for place in refused:
                del own[place]
            last = len(fresh)
        canvas.reveal("denoise", own.values())
        if not canvas.block.complete:
            yield Evaluate((canvas.block,))  # the answer ends here

    def _fresh(self, reading: Prediction) -> tuple[Pick, ...]:
        most = min(max(int(len(reading.picks) * _SHARE), _LEAST), _MOST)
        found = reading.above(self.wide)
        return found if len(found) <= most else reading.most_confident(most)

    def _refused(self, doubts: dict[int, float], last: int) -> list[int]:
        refused = sorted((place for place, sure in doubts.items() if sure < self.narrow), key=doubts.__getitem__)
        return refused if len(refused) < last else refused[: last - 1]


def _doubt(own: Pick, other: Prediction) -> float:
    """The probability of a token where it is masked; of another than the likeliest, the most that it can be."""
    (again,) = (pick for pick in other.picks if pick.position == own.position)
    return again.confidence if again.token == own.token else 1 - again.confidence


METHOD = Method(
    "WINO",
    "arXiv 2507.18578",
    "whole; each check is a row",
    (Wino(),),
    (Wino(0.7, 0.9), Wino(0.5, 0.7), Wino(0.3, 0.7)),
)
