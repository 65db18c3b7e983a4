"""The losses of MRP: divergence from the next step's distribution, and from the next step's order of positions."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from service.model import Backbone

ORDER_SHARPNESS = 1.5
_CLIP = (-6.0, 12.0)


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of the losses beside the plain divergence. 0 leaves a loss out.

    `next_pick`: the position of the teacher's next pick has the weight 1 + `next_pick`, all others 1. `order`,
    `revision`: the weights of these losses.
    """

    next_pick: float = 0.0
    order: float = 0.0
    revision: float = 0.0


def exact_logits(backbone: Backbone, hidden: Tensor) -> Tensor:
    """hidden `[..., H]` -> fp32 logits `[..., V]` by the head's own weights, also under autocast.

    Near 12, bf16 logits have steps of 0.06. That is more than the difference between two nearly certain positions. So
    weights in bf16 are widened for the product.
    """
    exact = torch.promote_types(backbone.dtype, torch.float32)
    with torch.autocast(hidden.device.type, enabled=False):
        return F.linear(hidden.to(exact), backbone.head.to(exact)).float()


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher ‖ student) of logits `[M, V]` -> `[M]`."""
    target, guess = teacher.float().log_softmax(-1), student.float().log_softmax(-1)
    return F.kl_div(guess, target, log_target=True, reduction="none").sum(-1)


def best_log_odds(logits: Tensor) -> Tensor:
    """The log-odds of the likeliest token, clipped, `[M, V]` -> `[M]`. They say how certain a position is."""
    best, rest = logits.float().topk(1, -1), logits.float()
    rest_logits = rest.scatter(-1, best.indices, -torch.inf).logsumexp(-1)
    return (best.values[..., 0] - rest_logits).clamp(*_CLIP)


def order_divergence(teacher: Tensor, student: Tensor, where: Tensor, block: int) -> Tensor:
    """The KL divergence between the orders in which teacher and student would reveal a block's positions, a scalar.

    teacher, student `[M, V]`: logits at the True places of `where` `[B, T]`. An order is a softmax over a block's
    positions, of the log-odds of their best tokens.
    """
    target = _order(best_log_odds(teacher), where, block)
    guess = _order(best_log_odds(student), where, block)
    several = where.unflatten(1, (-1, block)).sum(-1) > 1
    each = (target.exp() * (target - guess)).sum(-1)[several]
    return each.mean() if len(each) else each.sum()


def _order(odds: Tensor, where: Tensor, block: int) -> Tensor:
    scores = torch.full(where.shape, -1e4).masked_scatter(where, odds * ORDER_SHARPNESS)
    return torch.log_softmax(scores.unflatten(1, (-1, block)), -1)
