"""`static`, `dynamic`, `sequential`, `entropy`: every forward reveals what the mode's rule says."""

from service.decode.block import Canvas
from service.decode.params import Plain
from service.decode.policy import Decoding, Evaluate


def by_rule(canvas: Canvas, params: Plain) -> Decoding:
    """Decodes the canvas's block by the params' rule; `speculative` reproduces what comes out."""
    rule = params.rule
    while not canvas.block.complete:
        (reading,) = yield Evaluate((canvas.block,))
        canvas.reveal("denoise", rule(reading))
