"""The backbone of Qwen3's decoder layers, for engine, MRP, training and benchmarks.

Source of the layers: transformers' `modeling_qwen3` and `modeling_qwen3_moe`.
"""

from typing import cast

import torch
from torch import Tensor, nn

from service.model.config import ModelConfig
from service.model.experts import SparseFeedForward
from service.model.layer_ops import Rotation
from service.model.layers import Attend, DecoderLayer, FeedForward, Residual, RotaryTable, add_norm


class Backbone(nn.Module):
    """A language model over blocks. It knows no cache, batch or mode: attention is a function of the caller.

    `layers`: the decoder layers, dense or with the experts of the config. `norm`: the norm after them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        hidden, experts = config.hidden_size, config.experts
        self.layers = nn.ModuleList(
            DecoderLayer(config, SparseFeedForward(hidden, experts))
            if experts is not None and layer in experts.layers
            else DecoderLayer(config, FeedForward(hidden, config.intermediate_size))
            for layer in range(config.num_layers)
        )
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.rotary = RotaryTable(config)
        if config.tie_word_embeddings:
            self.tie()

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens `[R, L]` -> `[R, L, H]`."""
        return cast(Tensor, self.embed_tokens(tokens))

    def rotation(self, positions: Tensor) -> Rotation:
        """The rotary embedding of absolute positions `[R, L]`."""
        return cast(Rotation, self.rotary(positions))

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, fixed_shapes: bool = False) -> Tensor:
        """tokens, positions `[R, L]` -> hidden states after the final norm `[R, L, H]`.

        `attend` is called with layers 0 … num_layers-1. `fixed_shapes`: the shapes of every operation depend on R and L
        alone, so that a row's numbers do not depend on the other rows.
        """
        x, rotation = Residual(self.embed_tokens(tokens)), self.rotary(positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotation, index, attend, fixed_shapes)
        return add_norm(*x, self.norm)[0]

    @property
    def head(self) -> Tensor:
        """The matrix of the output head, `[V, H]`."""
        return self.lm_head.weight

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `[..., H]` -> `[..., V]`."""
        return cast(Tensor, self.lm_head(hidden))

    def tie(self) -> None:
        self.lm_head.weight = self.embed_tokens.weight

    @property
    def device(self) -> torch.device:
        return self.head.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.dtype
