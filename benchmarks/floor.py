"""The least time that a forward can take on a device: bytes over its bandwidth or operations over its rate.

Knows sizes and rates; no engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.machine import Rates
from service.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes that a forward must move and the operations that it must compute."""

    moved: int
    flops: int

    def seconds(self, rates: Rates) -> float:
        """The least time."""
        return max(self.moved / rates.bytes_per_s, self.flops / rates.flops_per_s)

    def bound(self, rates: Rates) -> str:
        """Which of the two it is bound by: "memory" or "arithmetic"."""
        memory = self.moved / rates.bytes_per_s >= self.flops / rates.flops_per_s
        return "memory" if memory else "arithmetic"


def forward_need(model: ModelConfig, rows: int, context: int, itemsize: int, sequences: int | None = None) -> Need:
    """A backbone forward over rows, each behind `context` tokens of its sequence, with logits everywhere.

    `sequences`: the number of sequences, which are read once each; None: one a row. Moved are the layers' weights, the
    output head once, each sequence's keys and values, and the logits. Rows of the embedding and activations are left
    out: they are small, or stay in caches. The number of moved experts assumes that tokens choose each with equal
    chance.
    """
    tokens = rows * model.block_size
    heads, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = model.hidden_size * (2 * heads + 2 * keys)
    read, used = _feed_forwards(model, tokens)
    layers, head = model.num_layers * attention, model.hidden_size * model.vocab_size
    cached = 2 * model.num_layers * keys * ((sequences or rows) * context + tokens)
    scores = 4 * model.num_layers * heads * tokens * (context + model.block_size)
    matrices = (layers + read) * (itemsize if model.quantization is None else 1)
    moved = matrices + (head + cached + tokens * model.vocab_size) * itemsize
    return Need(moved, 2 * (layers + head + used) * tokens + scores)


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
