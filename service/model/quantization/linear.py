"""A linear layer with an 8-bit matrix, and the product that reads it.

Each row of the matrix has one scale, symmetric around zero: `weight[n, k] ~ values[n, k] * scales[n]`. Sums are made of
the activations' own numbers and the 8-bit ones, then scaled. For few rows the CPU has a product of torch for int8.
A GPU has a Triton kernel for both types (`kernels.py`). Everything else widens the matrix first: right, but slow.

With 8-bit activations a product is torch's of whole numbers, on both devices.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.model.quantization.forms import Form

#: rows of activations up to which a product reads 8-bit numbers, by device; above, widening the matrix first is faster
_FEW_ROWS = {"cpu": 8, "cuda": 256}
#: cuBLAS multiplies whole numbers of at least so many rows, and of sizes that are multiples of so many
_FEWEST, _MULTIPLE = 32, 8
#: a row whose largest number is below this is nothing but zeros
_LEAST = 1e-30


class QuantizedLinear(nn.Module):
    """`x @ weight.T` with the weight in 8 bits. Buffers: `values` `[N, K]` as int8 bits, `scales` `[N]`.

    The bits of every form are kept as int8, so that `Module.to(dtype)` leaves them alone.
    """

    values: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor, form: Form) -> None:
        super().__init__()
        self.form = form
        self._type: torch.dtype = getattr(torch, form.dtype)
        values, scales = quantized(weight, form)
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)

    @property
    def weight(self) -> Tensor:
        """The matrix in the type of the activations: what products are made with, up to the order of roundings."""
        return self._widened() * self.scales[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """x `[..., K]` -> `[..., N]`."""
        rows = x.flatten(0, -2)
        out: Tensor = self._product(rows).unflatten(0, x.shape[:-1])
        return out

    def _product(self, rows: Tensor) -> Tensor:
        device = rows.device.type
        if self.form.activations and (device == "cpu" or all(size % _MULTIPLE == 0 for size in self.values.shape)):
            return self._whole_product(rows)
        few = len(rows) <= _FEW_ROWS.get(device, 0)
        if few and device == "cpu" and self._type == torch.int8:
            return torch._weight_int8pack_mm(rows.contiguous(), self.values, self.scales)  # noqa: SLF001 (no other name)
        if few and device == "cuda" and _has_triton():
            from service.model.quantization.kernels import product

            return product(rows, self.values.view(self._type), self.scales)
        return F.linear(rows, self._widened()) * self.scales

    def _whole_product(self, rows: Tensor) -> Tensor:
        peaks = rows.abs().amax(1, keepdim=True).float().clamp_min(_LEAST)
        values = (rows.float() * (self.form.largest / peaks)).round_().to(torch.int8)
        missing = _FEWEST - len(values) if rows.device.type == "cuda" else 0
        if missing > 0:
            values = F.pad(values, (0, 0, 0, missing))
        sums = torch._int_mm(values, self.values.t())[: len(rows)]  # noqa: SLF001 (no other name)
        return sums.float().mul_(peaks / self.form.largest).mul_(self.scales.float()).to(rows.dtype)

    def _widened(self) -> Tensor:
        return self.values.view(self._type).to(self.scales.dtype)

    def extra_repr(self) -> str:
        """For `print(model)`."""
        return f"in_features={self.values.shape[1]}, out_features={self.values.shape[0]}, {self.form.name}"


@cache
def _has_triton() -> bool:
    """Looks once: every layer asks in every forward."""
    return find_spec("triton") is not None


def quantized(weight: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """A matrix `[N, K]` -> 8-bit values `[N, K]` as int8 bits and scales `[N]` in the weight's type.

    A scale is rounded to its type first, so that the values are those nearest under the scale that is used.
    """
    peaks = weight.abs().amax(1).float()
    scales = (peaks / form.largest).clamp(min=torch.finfo(weight.dtype).tiny).to(weight.dtype)
    shares = (weight.float() / scales.float()[:, None]).clamp(-form.largest, form.largest)
    if form.dtype == "int8":
        shares = shares.round()
    values = shares.to(getattr(torch, form.dtype))
    return values.view(torch.int8), scales


def quantize(module: nn.Module, name: str, form: Form) -> None:
    """Replaces a linear layer within a module, by its name, by one with an 8-bit matrix."""
    parent, _, leaf = name.rpartition(".")
    owner = module.get_submodule(parent)
    linear = cast(nn.Linear, owner.get_submodule(leaf))
    setattr(owner, leaf, QuantizedLinear(linear.weight.detach(), form))
