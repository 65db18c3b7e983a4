"""Puts layers with 8-bit matrices where a network has wide parameters. Called while a checkpoint is loaded."""

from __future__ import annotations

from torch import nn

from service.model.quantization.bits import Bits
from service.model.quantization.forms import Form
from service.model.quantization.linear import QuantizedLinear
from service.model.quantization.matrices import QuantizedMatrices


def put(module: nn.Module, parameter: str, bits: Bits, form: Form) -> None:
    """`parameter`: its name within the module; the weight of a linear layer, or the matrices of experts."""
    place, _, leaf = parameter.rpartition(".")
    owner = module.get_submodule(place)
    if bits.values.ndim > 2:
        delattr(owner, leaf)
        setattr(owner, leaf, QuantizedMatrices(bits, form))
    else:
        parent, _, name = place.rpartition(".")
        setattr(module.get_submodule(parent), name, QuantizedLinear(bits, form))
