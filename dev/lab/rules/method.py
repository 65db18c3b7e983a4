"""What a method is: where it comes from, what was built of it, and the plans that are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from service.decode.block import Block, Pick
from service.decode.canvas import Canvas
from service.decode.knobs import Knob
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate, Prediction
from service.decode.rules import Rule, TopConfidence

#: the picks of a reading that are revealed
Choose = Callable[[Prediction], tuple[Pick, ...]]

#: the knobs of the lab's plans: numbers and counts without a range of their own
NUMBER = Knob(float, "a number", least=0)
COUNT = Knob(int, "a count", least=0)


class Method(NamedTuple):
    """A published method. `built`: what of it is measured here.

    `plans`: the settings that are reported. `tried`: others, measured on the tuning problems only.
    """

    name: str
    source: str
    built: str
    plans: tuple[DecodingMode, ...]
    tried: tuple[DecodingMode, ...] = ()


class Reveal(DecodingMode, frozen=True):
    """A method that reveals what it chooses of each reading, and may remember the readings of the block.

    `likeliest`: the tokens of each position whose log-probabilities it needs (`Pick.known`).
    """

    likeliest: ClassVar[int] = 0

    @property
    def rule(self) -> Rule:
        """What the engine asks for: no entropies."""
        return TopConfidence(1)

    def begin(self, block: Block) -> Choose:
        """What chooses the picks of a block from now on."""
        raise NotImplementedError

    def decode(self, canvas: Canvas) -> Decoding:
        """One forward a choice."""
        choose = self.begin(canvas.block)
        while not canvas.block.complete:
            (reading,) = yield Evaluate((canvas.block,))
            canvas.reveal("denoise", choose(reading))
