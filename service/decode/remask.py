"""`remask`: MRP checks the tokens that `dynamic` reveals and may mask them again (MRP paper, remasking)."""

from service.decode.block import Canvas, Pick
from service.decode.params import Remask
from service.decode.policy import Decoding, Evaluate, Refine


def remask(canvas: Canvas, params: Remask) -> Decoding:
    """Decodes the canvas's block. Only tokens of the current step can be masked again, and never all of them."""
    while not canvas.block.complete:
        (reading,) = yield Evaluate((canvas.block,))
        canvas.reveal("denoise", params.rule(reading))
        fresh = canvas.steps[-1].revealed
        if len(fresh) == 1:
            continue
        (corrected,) = yield Refine(reading, canvas.block, judge=tuple(pick.position for pick in fresh))
        doubtful = _doubtful(corrected.judged, params.threshold)
        if doubtful:
            canvas.revoke("mrp", doubtful)


def _doubtful(judged: tuple[Pick, ...], threshold: float) -> tuple[int, ...]:
    keep = max(judged, key=lambda pick: pick.confidence).position
    return tuple(p.position for p in judged if p.confidence < threshold and p.position != keep)
