"""The SDAR backbone: Qwen3 layers over one block of tokens per row.

Knows nothing of caches, batching or modes: attention arrives as a function. Source: SDAR
(arXiv 2510.06303); the architecture is Qwen3's with an explicit block-causal mask.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from service.model.config import ModelConfig
from service.model.layers import Attend, DecoderLayer, RotaryTable


class Sdar(nn.Module):
    """Backbone with its embedding and output head. `forward` gives hidden states, `logits` the rest."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.rotary = RotaryTable(config)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """tokens, positions `[R, L]` -> hidden states after the final norm `[R, L, H]`.

        `attend` is called with layers 0 … num_layers-1.
        """
        x, rotation = self.embed_tokens(tokens), self.rotary(positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotation, index, attend)
        return cast(Tensor, self.norm(x))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `[..., H]` -> `[..., V]`."""
        return cast(Tensor, self.lm_head(hidden))
