"""A linear layer with an 8-bit matrix, and the product that reads it.

Sums are made of the activations' own numbers and the 8-bit ones, then scaled. For few rows the CPU has a product of
torch for int8. A GPU has a Triton kernel for both types (`kernels.py`). Everything else widens the matrix first: right,
but slow.

With 8-bit activations a product is torch's of whole numbers, on both devices.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.model.quantization.bits import LEAST, Bits
from service.model.quantization.forms import Form

#: rows of activations up to which a product reads 8-bit numbers, by device; above, widening the matrix first is faster
_FEW_ROWS = {"cpu": 8, "cuda": 256}
#: cuBLAS multiplies whole numbers of at least so many rows, and of sizes that are multiples of so many
_FEWEST, _MULTIPLE = 32, 8
#: a kernel's step along the columns lies within one group of them, so that groups are multiples of this
_KERNELS_GROUP = 16


class QuantizedLinear(nn.Module):
    """`x @ weight.T` with the weight in 8 bits. Buffers: `values` `[N, K]` as int8 bits, `scales` `[N, G]`.

    The bits of every form are kept as int8, so that `Module.to(dtype)` leaves them alone.
    """

    values: Tensor
    scales: Tensor

    def __init__(self, bits: Bits, form: Form) -> None:
        super().__init__()
        self.form = form
        self.register_buffer("values", bits.values)
        self.register_buffer("scales", bits.scales)

    @property
    def weight(self) -> Tensor:
        """The matrix in the type of the activations: what products are made with, up to the order of roundings."""
        return Bits(self.values, self.scales).widened(self.form)

    def forward(self, x: Tensor) -> Tensor:
        """x `[..., K]` -> `[..., N]`."""
        rows = product(x.flatten(0, -2), Bits(self.values, self.scales), self.form)
        out: Tensor = rows.unflatten(0, x.shape[:-1])
        return out

    def extra_repr(self) -> str:
        """For `print(model)`."""
        return f"in_features={self.values.shape[1]}, out_features={self.values.shape[0]}, {self.form.name}"


def product(rows: Tensor, bits: Bits, form: Form) -> Tensor:
    """rows `[M, K]` times one matrix, `[N, K]` -> `[M, N]`."""
    device = rows.device.type
    if form.activations and (device == "cpu" or all(size % _MULTIPLE == 0 for size in bits.values.shape)):
        return _whole_product(rows, bits, form)
    few = len(rows) <= _FEW_ROWS.get(device, 0)
    if few and device == "cpu" and form.dtype == "int8" and bits.groups == 1:
        scales = bits.scales[:, 0]
        return torch._weight_int8pack_mm(rows.contiguous(), bits.values, scales)  # noqa: SLF001 (no other name)
    if few and has_kernel(rows, bits):
        from service.model.quantization import kernels

        return kernels.product(rows, bits.values.view(getattr(torch, form.dtype)), bits.scales)
    if bits.groups == 1:
        return F.linear(rows, bits.numbers(form)) * bits.scales[:, 0]
    return F.linear(rows, bits.widened(form))


def whole(rows: Tensor, form: Form) -> tuple[Tensor, Tensor]:
    """Activations `[M, K]` in 8 bits, and the scale of each row, `[M, 1]` in fp32."""
    peaks = rows.abs().amax(1, keepdim=True).float().clamp_min(LEAST)
    return (rows.float() * (form.largest / peaks)).round_().to(torch.int8), peaks / form.largest


def has_kernel(rows: Tensor, bits: Bits) -> bool:
    """Whether a kernel of ours takes such activations and matrices."""
    group = bits.values.shape[-1] // bits.groups
    return rows.device.type == "cuda" and _has_triton() and (bits.groups == 1 or group % _KERNELS_GROUP == 0)


def _whole_product(rows: Tensor, bits: Bits, form: Form) -> Tensor:
    values, scales = whole(rows, form)
    missing = _FEWEST - len(values) if rows.device.type == "cuda" else 0
    if missing > 0:
        values = F.pad(values, (0, 0, 0, missing))
    sums = torch._int_mm(values, bits.values.t())[: len(rows)]  # noqa: SLF001 (no other name)
    return sums.float().mul_(scales).mul_(bits.scales[:, 0].float()).to(rows.dtype)


@cache
def _has_triton() -> bool:
    """Looks once: every layer asks in every forward."""
    return find_spec("triton") is not None
