"""`dynamic`: reveal every masked position whose confidence is above a threshold (SDAR's dynamic rule)."""

from service.decode.block import Canvas
from service.decode.params import Dynamic
from service.decode.policy import Decoding, Evaluate


def dynamic(canvas: Canvas, params: Dynamic) -> Decoding:
    """Decodes the canvas's block; when no position is above the threshold the most confident is revealed."""
    while not canvas.block.complete:
        (reading,) = yield Evaluate((canvas.block,))
        canvas.reveal("denoise", reading.above(params.threshold))
