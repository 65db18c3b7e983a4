"""`direct`: one backbone pick, then MRP picks without verification (MRP paper, direct decoding)."""

from service.decode.block import Canvas
from service.decode.params import Direct
from service.decode.policy import Decoding, Evaluate, Refine


def direct(canvas: Canvas, params: Direct) -> Decoding:
    """Decodes the canvas's block with up to 1 + `mrp_steps` tokens per backbone forward."""
    while not canvas.block.complete:
        (reading,) = yield Evaluate((canvas.block,))
        canvas.reveal("denoise", params.rule(reading))
        for _ in range(params.mrp_steps):
            if canvas.block.complete:
                break
            (reading,) = yield Refine(reading, canvas.block)
            canvas.reveal("mrp", params.rule(reading))
