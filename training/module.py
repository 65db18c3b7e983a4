"""Makes a new MRP module from its backbone."""

import math

import torch
from torch import nn

from service.model import Backbone, ModelConfig, Mrp
from service.model.layers import FeedForward


def new_mrp(config: ModelConfig, backbone: Backbone) -> Mrp:
    """An MRP module with copies of the backbone's last layers. The output of a residual module starts small.

    A layer with experts gives its attention and norms. MRP's feed-forward there is new, and its output starts at zero.
    """
    if config.mrp is None:
        raise ValueError("the config has no MRP module: num_nextn_predict_layers is 0")
    mrp = Mrp(config, config.mrp)
    hidden, share = config.hidden_size, 0.15 if config.mrp.residual else 1.0
    last = list(backbone.layers)[-config.mrp.num_layers :]
    with torch.no_grad():
        nn.init.normal_(mrp.eh_proj.weight, std=0.12 / math.sqrt(2 * hidden))
        mrp.eh_proj.weight[:, :hidden] += 0.7 * torch.eye(hidden)
        mrp.eh_proj.weight[:, hidden:] += torch.eye(hidden)
        mrp.norm.weight.copy_(share * backbone.norm.weight)
    for layer, source in zip(mrp.layers, last, strict=True):
        if isinstance(source.mlp, FeedForward):
            layer.load_state_dict(source.state_dict())
        else:
            weights = {name: weight for name, weight in source.state_dict().items() if not name.startswith("mlp.")}
            layer.load_state_dict(weights, strict=False)
            nn.init.zeros_(layer.get_parameter("mlp.down_proj.weight"))
    return mrp
