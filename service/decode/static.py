"""`static`: reveal the n most confident masked positions of every forward (SDAR's low-confidence rule)."""

from service.decode.block import Canvas
from service.decode.params import Static
from service.decode.policy import Decoding, Evaluate


def static(canvas: Canvas, params: Static) -> Decoding:
    """Decodes the canvas's block; `tokens_per_step` 1 is the rule that `speculative` reproduces."""
    while not canvas.block.complete:
        (reading,) = yield Evaluate((canvas.block,))
        canvas.reveal("denoise", reading.most_confident(params.tokens_per_step))
