"""Matrices in 8 bits and the scales of their numbers: made of wide matrices, and made wide again.

A number is `value * scale`, symmetric around zero. A row has one scale, or one for each of several equal groups of its
columns, as published files may have it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from service.model.quantization.forms import Form

#: a row whose largest number is below this is nothing but zeros
LEAST = 1e-30
#: e4m3's bits in a wider type: whole numbers of that size, where the bits belong, and what mends the exponent's bias
_PLACES = {
    torch.float16: (torch.int16, 7, 2.0**8),
    torch.bfloat16: (torch.int16, 4, 2.0**120),
    torch.float32: (torch.int32, 20, 2.0**120),
}


class Bits(NamedTuple):
    """`values`: `[..., N, K]`, bits of every form as int8. `scales`: `[..., N, G]`, each for K / G columns of a row."""

    values: Tensor
    scales: Tensor

    @property
    def groups(self) -> int:
        """Scales of a row."""
        return self.scales.shape[-1]

    def numbers(self, form: Form) -> Tensor:
        """The 8-bit numbers in the scales' type, not scaled yet."""
        dtype = self.scales.dtype
        if form.dtype == "int8":
            return self.values.to(dtype)
        if self.values.device.type == "cpu" and dtype in _PLACES:
            return _placed(self.values, dtype)
        return self.values.view(getattr(torch, form.dtype)).to(dtype)

    def widened(self, form: Form) -> Tensor:
        """The matrices in the scales' type, `[..., N, K]`."""
        parts: Tensor = self.numbers(form).unflatten(-1, (self.groups, -1))
        return parts.mul_(self.scales[..., None]).flatten(-2)


def largest(weight: Tensor) -> Tensor:
    """The largest number of each row: `[..., N, K]` -> `[..., N]` in fp32."""
    return weight.abs().amax(-1).float()


def quantized(weight: Tensor, form: Form, peaks: Tensor | None = None) -> Bits:
    """A matrix `[N, K]` with a scale for each row, in the weight's type.

    `peaks`: `[N]`, the largest number of each row; None: that of these columns. A scale is rounded to its type first,
    so that the values are those nearest under the scale that is used.
    """
    peaks = largest(weight) if peaks is None else peaks
    scales = (peaks / form.largest).clamp(min=torch.finfo(weight.dtype).tiny).to(weight.dtype)[:, None]
    shares = (weight.float() / scales.float()).clamp(-form.largest, form.largest)
    if form.dtype == "int8":
        shares = shares.round()
    return Bits(shares.to(getattr(torch, form.dtype)).view(torch.int8), scales)


def _placed(values: Tensor, dtype: torch.dtype) -> Tensor:
    """e4m3 in a wider type, by its bits: torch's own conversion takes a number after the other on a CPU."""
    whole, place, factor = _PLACES[dtype]
    wide = values.to(whole)
    moved = (wide & 127).bitwise_left_shift_(place)
    return moved.bitwise_or_(wide.bitwise_and_(torch.iinfo(whole).min)).view(dtype).mul_(factor)
