"""MRP as the published loops ask it: without the text before the block.

Training shows MRP the clean prefix; the published speculative and remask loops call it on the block alone. What that
costs is measured by putting `block_only` in the place of a checkpoint's module.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from service.errors import CheckpointError
from service.model import Checkpoint, Mrp
from service.model.layers import Rotation


class BlockOnly(nn.Module):
    """An MRP module whose layers see their own block and nothing before it."""

    def __init__(self, mrp: Mrp) -> None:
        super().__init__()
        self._mrp = mrp

    def forward(self, embedded: Tensor, anchor: Tensor, rotation: Rotation, _: object) -> Tensor:
        """As `Mrp.forward`, with the attention handed in left unused."""
        changed: Tensor = self._mrp(embedded, anchor, rotation, _within_rows)
        return changed


def block_only(checkpoint: Checkpoint) -> Checkpoint:
    """The same checkpoint, its MRP module without prefix context. Raises CheckpointError where there is none."""
    if checkpoint.mrp is None:
        raise CheckpointError("the checkpoint has no MRP module")
    return replace(checkpoint, mrp=cast(Mrp, BlockOnly(checkpoint.mrp)))


def _within_rows(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An `Attend` of every row to itself."""
    q, k, v = (states.transpose(1, 2) for states in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2)
