"""Quantized tensors: 8-bit values with scales, made of wide matrices, and made wide again.

A number is `value * scale`, symmetric around zero. A row has one scale, or one for each of several equal groups of its
columns, as published files may have it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from service.model.quantization.schemes import QuantScheme

#: a row whose largest number is smaller than this is all zeros
SMALLEST_PEAK = 1e-30
#: How e4m3 becomes a wider type by its bits: an integer type of that width, the shift of the bits, and the factor that
#: corrects the exponent's bias.
_E4M3_SHIFTS = {
    torch.float16: (torch.int16, 7, 2.0**8),
    torch.bfloat16: (torch.int16, 4, 2.0**120),
    torch.float32: (torch.int32, 20, 2.0**120),
}


class QuantizedTensor(NamedTuple):
    """`values` `[..., N, K]`: 8-bit values of any scheme, viewed as int8. `scales` `[..., N, G]`: one a group."""

    values: Tensor
    scales: Tensor

    @property
    def groups(self) -> int:
        """The number of scales of a row."""
        return self.scales.shape[-1]

    def numbers(self, scheme: QuantScheme) -> Tensor:
        """The 8-bit values in the scales' type, not scaled."""
        dtype = self.scales.dtype
        if scheme.dtype == "int8":
            return self.values.to(dtype)
        if self.values.device.type == "cpu" and dtype in _E4M3_SHIFTS:
            return _widened_e4m3(self.values, dtype)
        return self.values.view(getattr(torch, scheme.dtype)).to(dtype)

    def dequantized(self, scheme: QuantScheme) -> Tensor:
        """The matrices in the scales' type, `[..., N, K]`."""
        groups: Tensor = self.numbers(scheme).unflatten(-1, (self.groups, -1))
        return groups.mul_(self.scales[..., None]).flatten(-2)


def row_peaks(weight: Tensor) -> Tensor:
    """The largest absolute number of each row: `[..., N, K]` -> `[..., N]` in fp32."""
    return weight.abs().amax(-1).float()


def quantized(weight: Tensor, scheme: QuantScheme, peaks: Tensor | None = None) -> QuantizedTensor:
    """A matrix `[N, K]` with a scale for each row, in the weight's type.

    `peaks` `[N]`: the largest number of each row; None: the largest of these columns. A scale is rounded to its type
    first, so that each value is the nearest one under the scale that is used.
    """
    peaks = row_peaks(weight) if peaks is None else peaks
    scales = (peaks / scheme.largest).clamp(min=torch.finfo(weight.dtype).tiny).to(weight.dtype)[:, None]
    values = (weight.float() / scales.float()).clamp(-scheme.largest, scheme.largest)
    if scheme.dtype == "int8":
        values = values.round()
    return QuantizedTensor(values.to(getattr(torch, scheme.dtype)).view(torch.int8), scales)


def _widened_e4m3(values: Tensor, dtype: torch.dtype) -> Tensor:
    """e4m3 in a wider type, by its bits: on a CPU torch's own conversion is not vectorised."""
    integer, shift, factor = _E4M3_SHIFTS[dtype]
    wide = values.to(integer)
    shifted = (wide & 127).bitwise_left_shift_(shift)
    return shifted.bitwise_or_(wide.bitwise_and_(torch.iinfo(integer).min)).view(dtype).mul_(factor)
