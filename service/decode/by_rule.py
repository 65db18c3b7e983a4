"""`static`, `dynamic`, `sequential`, `entropy`: every forward reveals the picks that the mode's rule chooses."""

from service.decode.block import Canvas
from service.decode.params import Plain
from service.decode.policy import Decoding, Evaluate


def by_rule(canvas: Canvas, params: Plain) -> Decoding:
    """Decodes the canvas's block by the params' rule. `speculative` reproduces its output."""
    rule = params.rule
    while not canvas.block.complete:
        (reading,) = yield Evaluate((canvas.block,))
        canvas.reveal("denoise", rule(reading))
