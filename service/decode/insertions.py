"""`edit` with insertions and deletions, of models that ask for them by tokens of their own (LLaDA2.2).

The token `delete` takes its position out of the block, `split` puts a mask before the token that stands there. Later
tokens move. The block keeps its length: masks fill it up, or its tail is cut. The definition is `JointThresholdInDel`
of SGLang (`srt/dllm/algorithm/joint_threshold_indel.py` at commit 0fbe7e4). One thing differs: no position gets the
mask token. `modes/edit.py` calls this.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import count
from operator import attrgetter

from msgspec.structs import replace

from service.decode.block import MASKED, Block, Pick
from service.decode.canvas import Canvas, EditTokens
from service.decode.policy import Decoding, Evaluate, Prediction

#: of this number of top tokens, one is no edit token
_TOP_OF_LAST = 3


def decode_with_insertions(
    canvas: Canvas, tokens: EditTokens, threshold: float, edit_threshold: float, max_steps: int
) -> Decoding:
    """Decodes the canvas's block. Tokens of the prompt stay.

    The block ends once a forward changes nothing, or with the last of `max_steps` forwards of states without an
    original mask. That last forward fills all masks, and neither inserts nor deletes.
    """
    head, size = canvas.block.num_leading, len(canvas.block.tokens)
    original = set(canvas.block.masked)  # the present positions of the masks that the block began with
    history, num_full = _History(), 0
    for number in count(1):
        block = canvas.block
        original.intersection_update(block.masked)
        num_full += not original
        last = num_full >= max(1, max_steps) or number > size + max_steps
        top = max(history.num_top(block), _TOP_OF_LAST if last or not max_steps else 0)
        standing = tuple(position for position in range(head, size) if block.tokens[position] != MASKED)
        (prediction,) = yield Evaluate((block,), top, edit=standing)
        masked = prediction.restricted_to(block)
        revealed = masked.picks if last else _revealed(masked, original, threshold)
        if not max_steps and original.issubset(pick.position for pick in revealed):
            last, revealed = True, masked.picks
        picks = sorted((*revealed, *_replaced(prediction, block, edit_threshold)), key=attrgetter("position"))
        if last:
            picks = [_other(pick, tokens) if pick.token in tokens else pick for pick in picks]
        else:
            picks = history.escape(block, picks)
        sources = _sources(picks, tokens, head, size)
        canvas.edit("denoise", [pick for pick in picks if pick.token not in tokens], sources)
        if sources:
            original = {position for position, source in enumerate(sources) if source in original}
        if last or not picks:
            return


class _History:
    """The states of a block that were read, and the tokens that its positions have got."""

    def __init__(self) -> None:
        self._seen = set[Block]()
        self._tried = defaultdict[int, set[int]](set)

    def num_top(self, block: Block) -> int:
        """The number of top tokens that `escape` needs."""
        return 1 + max(map(len, self._tried.values()), default=0) if block in self._seen else 0

    def escape(self, block: Block, picks: list[Pick]) -> list[Pick]:
        """The picks in a state. In one that comes again, the least confident pick gets a token that was not tried."""
        if picks and block in self._seen:
            least = min(picks, key=lambda pick: pick.confidence)
            picks[picks.index(least)] = _other(least, self._tried[least.position])
        self._seen.add(block)
        for pick in picks:
            self._tried[pick.position].add(pick.token)
        return picks


def _revealed(prediction: Prediction, original: Collection[int], threshold: float) -> tuple[Pick, ...]:
    """The picks above the threshold, but at least one more than there are new masks. All without original masks."""
    if not original:
        return prediction.picks
    sure = [index for index, confidence in enumerate(prediction.confidences) if confidence > threshold]
    least = 1 + len(prediction.positions) - len(original)
    return prediction.picked(sure) if len(sure) >= least else prediction.most_confident(least)


def _replaced(prediction: Prediction, block: Block, edit_threshold: float) -> tuple[Pick, ...]:
    """The picks that replace other tokens."""
    values = zip(prediction.positions, prediction.tokens, prediction.confidences, strict=True)
    return prediction.picked(
        index
        for index, (position, token, confidence) in enumerate(values)
        if confidence > edit_threshold and block.tokens[position] not in {MASKED, token}
    )


def _other(pick: Pick, excluded: Collection[int]) -> Pick:
    """The pick of the position's likeliest token that is not excluded; the same pick if no token is left."""
    if pick.logprobs is None:
        return pick
    for (token, logprob), confidence in zip(pick.logprobs.top, pick.logprobs.confidences, strict=True):
        if token not in excluded:
            return replace(pick, token=token, confidence=confidence, logprob=logprob)
    return pick


def _sources(picks: Iterable[Pick], tokens: EditTokens, head: int, size: int) -> tuple[int, ...]:
    """The effect of the edit tokens among the picks, as `Step.moved`."""
    written = {pick.position: pick.token for pick in picks}
    if tokens.delete not in written.values() and tokens.split not in written.values():
        return ()
    sources = [*range(head)]
    for position in range(head, size):
        if written.get(position) == tokens.split:
            sources.append(-1)
        if written.get(position) != tokens.delete:
            sources.append(position)
    return (*sources, *[-1] * size)[:size]
