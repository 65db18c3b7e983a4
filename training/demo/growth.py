"""Makes a backbone deeper without changing what it computes."""

from copy import deepcopy
from dataclasses import replace

import torch
from torch import nn

from service.model import Backbone, ModelConfig


def deeper(backbone: Backbone, config: ModelConfig) -> Backbone:
    """A backbone in the shape of `config`, whose number of layers is a multiple of the given one's.

    Behind each given layer stand copies of it whose outputs are zero. So the new backbone has the same hidden states,
    and its new layers begin with features that are of use.
    """
    times, rest = divmod(config.num_layers, len(backbone.layers))
    if rest:
        raise ValueError(f"{config.num_layers} layers are not a multiple of {len(backbone.layers)}")
    grown = Backbone(replace(config, num_layers=0))
    weights = {name: value for name, value in backbone.state_dict().items() if not name.startswith("layers.")}
    grown.load_state_dict(weights)
    for layer in backbone.layers:
        grown.layers.append(layer)
        grown.layers.extend(_silent(layer) for _ in range(times - 1))
    return grown


def _silent(layer: nn.Module) -> nn.Module:
    """A copy whose attention and feed-forward add nothing."""
    copy = deepcopy(layer)
    with torch.no_grad():
        for name, parameter in copy.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
    return copy
