"""The number of positions that may be revealed together: the bound of EB-Sampler (arXiv 2505.24857, section 4).

The sum of the positions' entropies less the largest one bounds the error of drawing the tokens independently. SDAR's
generate.py (`entropy_bounded`) bounds the whole sum instead, and cannot run. It takes the entropy of the chosen
tokens' probabilities over the block, and it never makes the index to which it writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.decode.block import Pick
from service.decode.policy import Prediction


def bounded(reading: Prediction, ordered: Sequence[int], bound: float, least: int = 1) -> tuple[Pick, ...]:
    """The picks of the longest beginning of `ordered` within the bound (in nats), at least `least`.

    `ordered`: masked positions by their number in the reading.
    """
    entropies, largest, others = reading.entropies, 0.0, 0.0
    for count, place in enumerate(ordered):
        entropy = entropies[place]
        if entropy > largest:
            entropy, largest = largest, entropy
        others += entropy
        if others > bound and count >= least:
            return reading.picked(ordered[:count])
    return reading.picked(ordered)
