"""The first token of a block in models with shifted outputs: the block before predicts it (`ModelConfig.shifted`)."""

from service.decode.block import MASKED
from service.decode.canvas import Canvas
from service.decode.mode import DecodingMode
from service.decode.policy import Decoding, Evaluate
from service.decode.rules import LeftToRight


def decode_after_first(mode: DecodingMode, canvas: Canvas) -> Decoding:
    """The policy of a block whose first position is read alone, before the mode decodes the others.

    The engine answers `Evaluate` of a block without its first token by the output of the block before.
    """
    if canvas.block.tokens[0] == MASKED:
        (prediction,) = yield Evaluate((canvas.block,))
        canvas.reveal("denoise", canvas.choose(LeftToRight(), prediction, canvas.block))
    if not canvas.block.complete:
        yield from mode.decode(canvas)
