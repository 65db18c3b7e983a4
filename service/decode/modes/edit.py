"""`edit`: `dynamic`, whose forwards may also replace tokens that the block already has.

LLaDA2.1 is trained for it. The definition is `JointThreshold` of SGLang (`srt/dllm/algorithm/joint_threshold.py` at
commit cabd454, without `penalty_lambda`), which chooses the same tokens as `generate` of LLaDA2.1 (`editing_threshold`,
`max_post_steps`) with `num_to_transfer` 1. One thing differs: no position gets the mask token. LLaDA2.2 may insert and
delete tokens, too (`service/decode/insertions.py`).
"""

from typing import Annotated, ClassVar

from msgspec import structs

from service.decode.block import MASKED, Block, Pick
from service.decode.canvas import Canvas
from service.decode.insertions import decode_with_insertions
from service.decode.knobs import THRESHOLD, Knob
from service.decode.mode import DecodingMode
from service.decode.modes.plain_modes import Dynamic
from service.decode.policy import Decoding, Evaluate, Prediction
from service.decode.rules import ConfidenceAbove, Rule

_EDIT_THRESHOLD = Knob(
    float, "confidence that another token needs to replace a revealed one; 1: never", minimum=0, maximum=1
)
_MAX_POST_EDIT_STEPS = Knob(int, "forwards that may replace tokens of a full block, at most", minimum=0, maximum=256)


class Edit(DecodingMode, frozen=True):
    """Dynamic; a token with confidence > `edit_threshold` also replaces another one that stands at its position."""

    name: ClassVar[str] = "edit"
    moves_tokens: ClassVar[bool] = True
    served_in_order: ClassVar[bool] = False
    threshold: Annotated[float, THRESHOLD] = 0.7
    edit_threshold: Annotated[float, _EDIT_THRESHOLD] = 0.5
    max_post_edit_steps: Annotated[int, _MAX_POST_EDIT_STEPS] = 16

    @property
    def rule(self) -> Rule:
        return ConfidenceAbove(self.threshold)

    def decode(self, canvas: Canvas) -> Decoding:
        """Ends a full block once a forward replaces nothing, or after `max_post_edit_steps` forwards of full blocks.

        Tokens of the prompt are never replaced. With a grammar nothing is: it allowed a token for those before it.
        """
        if canvas.grammar is not None:
            yield from Dynamic(self.threshold).decode(canvas)
            return
        if canvas.edit_tokens is not None:
            yield from decode_with_insertions(canvas, canvas.edit_tokens, *structs.astuple(self))
            return
        answer, full = canvas.block.masked, list[Block]()  # positions; the full states so far
        while len(full) < self.max_post_edit_steps or not canvas.block.complete:
            block = canvas.block
            if block in full:
                self._repeat(canvas, len(full) - full.index(block), len(full))
                return
            if block.complete:
                full.append(block)
            standing = tuple(position for position in answer if block.tokens[position] != MASKED)
            (prediction,) = yield Evaluate((block,), edit=standing)
            picks = self._picks(prediction, block)
            if canvas.without_bad_words is not None:
                picks = canvas.without_bad_words(block, picks)
            canvas.edit("denoise", picks)
            if not picks:
                return

    def _picks(self, prediction: Prediction, block: Block) -> tuple[Pick, ...]:
        """The picks at masked positions, then those that replace tokens."""
        revealed, tokens = () if block.complete else self.rule(prediction.restricted_to(block)), block.tokens
        values = zip(prediction.positions, prediction.tokens, prediction.confidences, strict=True)
        edits = prediction.picked(
            index
            for index, (position, token, confidence) in enumerate(values)
            if confidence > self.edit_threshold and tokens[position] not in {MASKED, token}
        )
        return (*revealed, *edits)

    def _repeat(self, canvas: Canvas, period: int, num_full: int) -> None:
        """Ends a full block that has come back to a state: the last `period` steps would repeat until the maximum."""
        for step in canvas.steps[-period:][: (self.max_post_edit_steps - num_full) % period]:
            canvas.record(step)
