"""The 8-bit matrices of experts, and their product with rows that are sorted by expert."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from service.model.quantization.bits import Bits
from service.model.quantization.forms import Form
from service.model.quantization.linear import has_kernel, product, whole


class QuantizedMatrices(nn.Module):
    """A matrix for each expert. Buffers: `values` `[E, N, K]` as int8 bits, `scales` `[E, N, G]`."""

    values: Tensor
    scales: Tensor

    def __init__(self, bits: Bits, form: Form) -> None:
        super().__init__()
        self.form = form
        self.register_buffer("values", bits.values)
        self.register_buffer("scales", bits.scales)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def weight(self) -> Tensor:
        """The matrices in the type of the activations, `[E, N, K]`."""
        return Bits(self.values, self.scales).widened(self.form)

    def product(self, rows: Tensor, number: int) -> Tensor:
        """rows `[M, K]` times one expert's matrix -> `[M, N]`."""
        return product(rows, Bits(self.values[number], self.scales[number]), self.form)

    def grouped(self, rows: Tensor, ends: Tensor) -> Tensor:
        """rows `[P, K]`, sorted by expert, where each expert's end `[E]` int32 -> `[P, N]`."""
        if has_kernel(rows, Bits(self.values, self.scales)):
            return self._by_kernel(rows, ends)
        stops = ends.tolist()  # on a GPU this waits for it
        spans = zip(range(len(stops)), [0, *stops], stops, strict=False)
        return torch.cat([self.product(rows[start:stop], number) for number, start, stop in spans if stop > start])

    def _by_kernel(self, rows: Tensor, ends: Tensor) -> Tensor:
        """8-bit activations are whole numbers that bfloat16 holds."""
        from service.model.quantization import kernels

        values = self.values.view(getattr(torch, self.form.dtype))
        if not self.form.activations:
            return kernels.grouped_product(rows, values, self.scales, ends, rows.dtype)
        numbers, scales = whole(rows, self.form)
        sums = kernels.grouped_product(numbers.bfloat16(), values, self.scales, ends, torch.float32)
        return sums.mul_(scales).to(rows.dtype)

    def extra_repr(self) -> str:
        """For `print(model)`."""
        number, width, depth = self.values.shape
        return f"{number} of in_features={depth}, out_features={width}, {self.form.name}"
