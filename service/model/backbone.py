"""What every family's backbone offers to engine, MRP, training and bench, whatever its layers are.

The shape of its keys and values stands in `ModelConfig`: `num_kv_layers`, `num_kv_heads`, `head_dim`, `block_size`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from service.model.layers import Attend, Rotation


class Backbone(nn.Module, ABC):
    """A language model that reads blocks. It knows no cache, batch or mode: attention arrives as a function.

    `layers`: its decoder layers. `norm`: the norm behind them.
    """

    layers: nn.ModuleList
    norm: nn.RMSNorm

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """tokens `[R, L]` -> `[R, L, H]`."""

    @abstractmethod
    def rotation(self, positions: Tensor) -> Rotation:
        """The rotary embedding of absolute positions `[R, L]`."""

    @abstractmethod
    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, same_shapes: bool = False) -> Tensor:
        """tokens, positions `[R, L]` -> hidden states after the final norm `[R, L, H]`.

        `attend` is called with layers 0 … num_layers-1. `same_shapes`: what a row computes has shapes that depend on R
        and L alone, so that its numbers do not depend on the other rows.
        """

    @property
    @abstractmethod
    def head(self) -> Tensor:
        """The matrix of the output head, `[V, H]`."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `[..., H]` -> `[..., V]`."""

    @abstractmethod
    def tie(self) -> None:
        """Makes the embedding's matrix the output head's, too."""

    @property
    def device(self) -> torch.device:
        """Where the weights live."""
        return self.head.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' type."""
        return self.head.dtype
