"""The least time that a forward can take on a device: bytes over its bandwidth or operations over its rate.

The layers' products, attention and the output head run one after another, each bound by memory or by arithmetic. So the
floor is the sum over these phases.
"""

from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.machine import Rates
from service.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes that a phase must move and the operations that it must compute."""

    moved: int
    flops: int

    def seconds(self, rates: Rates) -> float:
        return max(self.moved / rates.bytes_per_s, self.flops / rates.flops_per_s)


class ForwardNeed(NamedTuple):
    """The needs of a forward's phases. `products`: of the layers. `head`: the output head and the logits."""

    products: Need
    attention: Need
    head: Need

    @property
    def moved(self) -> int:
        return sum(phase.moved for phase in self)

    @property
    def flops(self) -> int:
        return sum(phase.flops for phase in self)

    def seconds(self, rates: Rates) -> float:
        return sum(phase.seconds(rates) for phase in self)

    def bound(self, rates: Rates) -> str:
        """The bound of most of this time: "memory" or "arithmetic"."""
        memory = sum(
            phase.seconds(rates) for phase in self if phase.moved / rates.bytes_per_s >= phase.flops / rates.flops_per_s
        )
        return "memory" if 2 * memory >= self.seconds(rates) else "arithmetic"


def forward_need(model: ModelConfig, rows: int, context: int, itemsize: int) -> ForwardNeed:
    """A backbone forward over rows, each behind `context` tokens of a sequence of its own, with logits everywhere.

    Moved are the layers' weights, the output head once, each sequence's keys and values, and the logits. Rows of the
    embedding and activations are left out: they are small, or stay in caches. The number of moved experts assumes that
    tokens choose each with equal chance.
    """
    tokens = rows * model.block_size
    heads, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    projections = model.num_layers * model.hidden_size * (2 * heads + 2 * keys)
    read, used = _feed_forwards(model, tokens)
    head = model.hidden_size * model.vocab_size
    cached = 2 * model.num_layers * keys * (rows * context + tokens)
    scores = 4 * model.num_layers * heads * tokens * (context + model.block_size)
    matrices = (projections + read) * (itemsize if model.quantization is None else 1)
    return ForwardNeed(
        products=Need(matrices, 2 * (projections + used) * tokens),
        attention=Need(cached * itemsize, scores),
        head=Need((head + tokens * model.vocab_size) * itemsize, 2 * head * tokens),
    )


def _feed_forwards(model: ModelConfig, tokens: int) -> tuple[int, int]:
    """Weights of all layers' feed-forwards: the weights for all tokens together, and the weights for one token."""
    dense = (model.num_layers - model.num_expert_layers) * 3 * model.hidden_size * model.intermediate_size
    experts = model.experts
    if experts is None:
        return dense, dense
    expert = 3 * model.hidden_size * experts.intermediate_size
    every = model.hidden_size * (experts.num_experts + 3 * experts.shared_size)  # the router and the shared experts
    moved = experts.num_experts * (1 - (1 - experts.per_token / experts.num_experts) ** tokens)
    read = dense + model.num_expert_layers * (every + round(moved * expert))
    return read, dense + model.num_expert_layers * (every + experts.per_token * expert)
