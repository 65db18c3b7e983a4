"""What a forward leaves on its device for later forwards of MRP: hidden states, and which tokens drafts may choose.

A row of a later forward names the row that it goes on from by an `Anchor`, so that a forward's tensors stay whole and
nothing is made of the rows that nobody goes on from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, stack

from service.model.transfer import to_device_async


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Tokens that a position's is chosen from, int64 `[…, C]`, and the weight of all others, `[…]`.

    The weight is the logsumexp of their logits over the request's temperature, the mask token's included.
    """

    tokens: Tensor
    others: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """What a forward computed for its rows. `hidden`: `[R, L, H]`.

    `lists`: the candidates of every position, `[R, L, …]`, of those rows for which `listed` `[R]` is true.
    """

    hidden: Tensor
    lists: Candidates | None = None
    listed: NDArray[np.bool_] | None = None


class Anchor(NamedTuple):
    """Row `number` of a forward."""

    states: States
    number: int

    @property
    def hidden(self) -> Tensor:
        """Its hidden states `[L, H]`."""
        return self.states.hidden[self.number]

    @property
    def listed(self) -> bool:
        """Whether its positions have candidates."""
        return self.states.listed is not None and bool(self.states.listed[self.number])


def gathered(anchors: Sequence[Anchor], part: Callable[[States], Tensor]) -> Tensor:
    """The anchors' rows of a part of their forwards, `[N, …]`: by one operation if all are of one forward."""
    states = anchors[0].states
    if any(anchor.states is not states for anchor in anchors):
        return stack([part(anchor.states)[anchor.number] for anchor in anchors])
    whole = part(states)
    return whole.index_select(0, to_device_async(np.array([anchor.number for anchor in anchors]), whole.device))
