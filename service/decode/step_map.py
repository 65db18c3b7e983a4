"""The step map of an answer: for each token, the step that revealed it, and the token's log-probability at that step.

Steps are counted as the plain mode takes them. A verified forward of `speculative` covers several of them.
"""

from collections.abc import Iterable
from itertools import islice
from math import log
from typing import NamedTuple

from service.decode.block import Pick, Step

#: OpenAI's number for a probability of 0
_LEAST = -9999.0


class TokenStep(NamedTuple):
    """A token of an answer."""

    token: int
    step: int  # the number of the step that revealed it, over the whole answer, from 1
    logprob: float  # its natural log-probability by the prediction that decided that step


class StepMap:
    """Counts the steps of an answer, block after block. `num_steps`: the number of steps so far.

    In `direct` each forward of MRP is a step, with MRP's log-probabilities. In `remask` the last step that revealed a
    token counts. A token that a grammar forces belongs to the step before it: 0 at the answer's beginning.
    """

    def __init__(self, num_steps: int = 0) -> None:
        self.num_steps = num_steps

    def add(self, steps: Iterable[Step]) -> list[TokenStep]:
        """The tokens that the steps of the next block revealed, in the order of their positions.

        A position that was masked again and not filled since lies after the answer's end.
        """
        filled, before = dict[int, TokenStep](), self.num_steps
        for step in steps:
            for position in step.remasked:
                filled.pop(position, None)
            filled = step.move(filled)
            if step.kind == "forced":
                for pick in step.revealed:  # ascending
                    left = filled.get(pick.position - 1)
                    filled[pick.position] = TokenStep(pick.token, left.step if left else before, 0.0)
            elif step.revealed:
                picks = iter(step.revealed)
                for size in step.sizes or (len(step.revealed),):
                    self.num_steps += 1
                    for pick in islice(picks, size):
                        filled[pick.position] = TokenStep(pick.token, self.num_steps, logprob_of(pick))
        return [filled[position] for position in sorted(filled)]


def logprob_of(pick: Pick) -> float:
    """The log-probability of a pick's token at the request's temperature, as exact as the prediction has it."""
    top = pick.logprobs.top if pick.logprobs else ()
    for token, logprob in top:
        if token == pick.token:
            return min(0.0, logprob)
    if pick.logprob is not None:
        return min(0.0, pick.logprob)
    return min(0.0, log(pick.confidence)) if pick.confidence > 0 else _LEAST
