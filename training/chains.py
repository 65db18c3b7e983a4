"""MRP applied along chains of consecutive states, and its divergence from the backbone.

The anchor of an application is the output of the application before it; the first anchor is the backbone's. The states
come from decoding (rollout.py) or from noise (noise.py).
"""

import torch
from torch import Tensor

from service.model import Backbone, Mrp
from training.attention import BlockAttention, DenseAttention
from training.layout import Layout
from training.losses import Weights, divergence, exact_logits, order_divergence
from training.rollout import EndIds, Step, Trajectory, masked_positions


class Rows:
    """MRP over several states of one trajectory in one forward. The clean part is computed once."""

    def __init__(self, backbone: Backbone, mrp: Mrp, trajectory: Trajectory, copies: int) -> None:
        self._backbone, self._mrp = backbone, mrp
        self.layout = layout = trajectory.batch.layout
        clean, embedded = DenseAttention(layout.clean_mask), backbone.embed(trajectory.batch.clean)
        mrp(embedded, trajectory.clean_hidden, backbone.rotation(layout.clean_positions), clean)
        self._rotation = backbone.rotation(layout.positions(copies))
        self._attend = BlockAttention(self.reads(layout, copies), layout.block, clean.layers)

    def reads(self, layout: Layout, copies: int) -> Tensor:
        """The positions of the clean part that the states may read, `[copies * N, clean]`."""
        return layout.reads(copies)

    def refine(self, tokens: Tensor, anchor: Tensor) -> Tensor:
        """tokens `[B, copies * N]`, anchor `[B, copies * N, H]` -> the next anchor, same shape."""
        out: Tensor = self._mrp(self._backbone.embed(tokens), anchor, self._rotation, self._attend)
        return out


def chain_loss(
    rows: Rows,
    backbone: Backbone,
    chains: list[list[Step]],
    where: list[Tensor],
    weights: Weights,
    importance: Tensor | None = None,
) -> Tensor:
    """The loss of MRP applied along several chains of consecutive steps, which are copies in one forward.

    `chains[c]`: the step of the anchor and the steps after it. `where[k]` `[B, copies * N]`: the positions at which
    application k is compared with the backbone. `importance` `[B, copies * N]`: factors of the positions' weights.
    """
    layout = rows.layout
    anchor, loss = torch.cat([chain[0].hidden for chain in chains], 1), torch.zeros(())
    for depth, judged in enumerate(where, start=1):
        anchor = rows.refine(torch.cat([chain[depth].tokens for chain in chains], 1), anchor)
        if not judged.any():
            continue
        outputs = layout.outputs(torch.cat([chain[depth].hidden for chain in chains], 1)), layout.outputs(anchor)
        teacher, student = (exact_logits(backbone, hidden[judged]) for hidden in outputs)
        picked = torch.cat([torch.zeros_like(c[depth].tokens).scatter(1, c[depth].position, 1) for c in chains], 1)
        weight = 1 + weights.next_pick * picked[judged]
        if importance is not None:
            weight = weight * importance[judged]
        loss = loss + (divergence(teacher, student) * weight).sum() / weight.sum()
        if weights.order:
            loss = loss + weights.order * order_divergence(teacher, student, judged, layout.block)
    return loss


def chains_of(
    trajectory: Trajectory, starts: list[int], offsets: list[int], end_id: EndIds
) -> tuple[list[list[Step]], list[Tensor]]:
    """The chains of steps after each start, and the positions at which each application is compared.

    `offsets`: the distance of each application's state from the start, such as `[1, 2]`, or `[2, 3]` if the first
    application comes two picks after its anchor.
    """
    steps, last = trajectory.steps, len(trajectory.steps) - 1
    chains = [[steps[min(start + offset, last)] for offset in (0, *offsets)] for start in starts]
    where = [
        torch.cat(
            [
                masked_positions(chain[depth].tokens, trajectory.batch, end_id) & (start + offset <= last)
                for chain, start in zip(chains, starts, strict=True)
            ],
            1,
        )
        for depth, offset in enumerate(offsets, start=1)
    ]
    return chains, where
