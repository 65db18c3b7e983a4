"""The revision loss, which trains MRP for `remask`.

Several positions of a state are revealed at once, as in `dynamic`. MRP reads the new tokens with the hidden states
from before. The teacher is the backbone, which reads the state with some of these positions masked again and the
others in place. Plain next-step training does not cover revealed positions.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from service.model import Backbone
from training.losses import divergence, exact_logits
from training.rollout import EndIds, Step, Trajectory, backbone_logits, look, masked_positions

_LOWEST_THRESHOLD, _THRESHOLD_SPAN = 0.12, 0.5
_SAMPLED_SHARE = 0.25
_ALSO_DOUBTED_SHARE = 0.12

#: (tokens `[B, N]`, anchor `[B, N, H]`) -> the next anchor
Refine = Callable[[Tensor, Tensor], Tensor]


def revision_loss(refine: Refine, backbone: Backbone, trajectory: Trajectory, end_id: EndIds) -> Tensor:
    """The KL divergence between backbone and MRP at some positions that were revealed in parallel, of one state."""
    step = trajectory.steps[int(torch.rand(()).item() ** 2 * (len(trajectory.steps) - 1))]
    layout = trajectory.batch.layout
    masked = layout.readable(masked_positions(step.tokens, trajectory.batch, end_id))
    tokens, revealed = reveal_in_parallel(backbone, step, masked, trajectory)
    doubted = choose_doubted(revealed, layout.block)
    if not doubted.any():
        return torch.zeros(())
    teacher = look(backbone, trajectory, torch.where(doubted, trajectory.batch.mask_id, tokens))
    outputs = layout.outputs(teacher), layout.outputs(refine(tokens, step.hidden))
    return divergence(*(exact_logits(backbone, hidden[doubted]) for hidden in outputs)).mean()


@torch.no_grad()
def reveal_in_parallel(backbone: Backbone, step: Step, masked: Tensor, trajectory: Trajectory) -> tuple[Tensor, Tensor]:
    """The state after revealing all positions above a random threshold, and the revealed positions, both `[B, N]`."""
    block, batch = trajectory.batch.layout.block, trajectory.batch
    chances = backbone_logits(backbone, batch.layout.outputs(step.hidden), batch.mask_id).softmax(-1)
    sure, token = chances.max(-1)
    per_block = (len(sure), batch.layout.blocks)
    threshold = _LOWEST_THRESHOLD + _THRESHOLD_SPAN * torch.rand(per_block)
    sampled = (torch.rand(per_block) < _SAMPLED_SHARE).repeat_interleave(block, 1)
    surest = torch.zeros_like(masked).scatter(1, step.position, value=True)
    revealed = masked & ((sure > threshold.repeat_interleave(block, 1)) | surest)
    if (drawn := revealed & sampled).any():
        token[drawn] = torch.multinomial(chances[drawn], 1)[:, 0]
    return torch.where(revealed, token, step.tokens), revealed


def choose_doubted(revealed: Tensor, block: int) -> Tensor:
    """One random revealed position of each block, and a few more, `[B, N]`."""
    draw = torch.rand(revealed.shape).masked_fill(~revealed, -1).unflatten(1, (-1, block))
    reveals = torch.zeros_like(draw).scatter(2, draw.argmax(-1, keepdim=True), 1.0).flatten(1) > 0
    return revealed & (reveals | (torch.rand(revealed.shape) < _ALSO_DOUBTED_SHARE))
