"""The MRP module: predicts how the backbone's hidden state changes from one denoising step to the next.

`y = eh_proj(concat(enorm(embed(x)), hnorm(h)))`, some decoder layers, `norm`. The sum with the anchor
goes through the backbone's own `lm_head`. Source: "Multi-Token Residual Prediction"
(arXiv 2605.18817) and the published checkpoints' weight names.
"""

import torch
from torch import Tensor, nn

from service.model.config import ModelConfig, MrpConfig
from service.model.layer_ops import Rotation, rms_norm
from service.model.layers import Attend, DecoderLayer, FeedForward, Residual, add_norm


class Mrp(nn.Module):
    """One MRP module, with dense layers. Embedding, rotary table and output head of the backbone are arguments."""

    def __init__(self, config: ModelConfig, mrp: MrpConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.enorm = nn.RMSNorm(hidden, eps=eps)
        self.hnorm = nn.RMSNorm(hidden, eps=eps)
        self.eh_proj = nn.Linear(2 * hidden, hidden, bias=False)
        feed_forwards = (FeedForward(hidden, config.intermediate_size) for _ in range(mrp.num_layers))
        self.layers = nn.ModuleList(DecoderLayer(config, mlp) for mlp in feed_forwards)
        self.norm = nn.RMSNorm(hidden, eps=eps)
        self.first_kv_layer = config.num_layers
        self.residual, self.scale = mrp.residual, mrp.scale

    def forward(self, embedded: Tensor, anchor: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """embedded tokens and anchor hidden states, both `[R, L, H]`, -> the next anchor `[R, L, H]`.

        The result is the input of the backbone's `lm_head`: `anchor + scale * h_C`, or `scale * h_C`
        for a checkpoint that is not residual. `attend` is called with layers num_layers … , so that
        one cache can hold the backbone's KV and MRP's.
        """
        x = Residual(self.eh_proj(torch.cat([rms_norm(embedded, self.enorm), rms_norm(anchor, self.hnorm)], dim=-1)))
        for index, layer in enumerate(self.layers, start=self.first_kv_layer):
            x = layer(x, rotation, index, attend)
        change = add_norm(*x, self.norm)[0] * self.scale
        return anchor + change if self.residual else change
