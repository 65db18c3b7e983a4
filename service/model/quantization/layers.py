"""Quantized tensors (8-bit values with scales), and the linear layers and experts that have them as weights.

A number is `value * scale`, symmetric around zero. A row has one scale, or one for each of several equal groups of its
columns, as published files may have it.

On a GPU every product is our Triton kernel's (`triton_matmul.py`): a row's bits do not depend on the other rows. A CPU
has torch's product of int8, whose sums are exact, so they are the kernel's. Every other case widens the matrix first,
which is right but slow.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from service.model.quantization.schemes import QuantScheme
from service.model.triton_support import use_triton

#: a row whose largest number is smaller than this is all zeros
_SMALLEST_PEAK = 1e-30
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


# --- layers ----------------------------------------------------------------------------------------

#: without Triton: the fewest rows of a product of whole numbers by cuBLAS, and the divisor of its sizes
_CUBLAS_ROWS, _CUBLAS_MULTIPLE = 32, 8
#: A kernel's step along the columns lies within a group of them. Tensor cores take 32 columns of 8 bits at once.
_KERNEL_GROUP = 32


class _QuantizedLayer(nn.Module):
    """Buffers: `values` as int8, so that `Module.to(dtype)` leaves them alone, and `scales`."""

    values: Tensor
    scales: Tensor

    def __init__(self, tensor: QuantizedTensor, scheme: QuantScheme) -> None:
        super().__init__()
        self.scheme = scheme
        self.register_buffer("values", tensor.values)
        self.register_buffer("scales", tensor.scales)

    @property
    def tensor(self) -> QuantizedTensor:
        return QuantizedTensor(self.values, self.scales)

    @property
    def weight(self) -> Tensor:
        """The weight in the type of the activations. A product equals the product with it, but for roundings."""
        return self.tensor.dequantized(self.scheme)


class QuantizedLinear(_QuantizedLayer):
    """`x @ weight.T + bias`. `values` `[N, K]`, `scales` `[N, G]`, `bias` `[N]`, wide, or None."""

    def __init__(self, tensor: QuantizedTensor, scheme: QuantScheme, bias: nn.Parameter | None = None) -> None:
        super().__init__(tensor, scheme)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """x `[..., K]` -> `[..., N]`."""
        out: Tensor = product(x.flatten(0, -2), self.tensor, self.scheme).unflatten(0, x.shape[:-1])
        return out if self.bias is None else out.add_(self.bias)


class QuantizedExperts(_QuantizedLayer):
    """A matrix for each expert. `values` `[E, N, K]`, `scales` `[E, N, G]`."""

    def __len__(self) -> int:
        return len(self.values)

    def product(self, rows: Tensor, expert: int) -> Tensor:
        """rows `[M, K]` times one expert's matrix -> `[M, N]`."""
        return product(rows, QuantizedTensor(self.values[expert], self.scales[expert]), self.scheme)

    def grouped(self, rows: Tensor, ends: Tensor) -> Tensor:
        """rows `[P, K]`, sorted by expert, the end of each expert's rows `[E]` int32 -> `[P, N]`."""
        if has_kernel(rows, self.tensor):
            return kernel_product(rows, self.tensor, self.scheme, ends)
        stops = ends.tolist()  # on a GPU this waits for it
        spans = zip(range(len(stops)), [0, *stops], stops, strict=False)
        return torch.cat([self.product(rows[start:stop], expert) for expert, start, stop in spans if stop > start])


def replace_layer(module: nn.Module, parameter: str, tensor: QuantizedTensor, scheme: QuantScheme) -> None:
    """Replaces a wide parameter by an 8-bit layer. Called while a checkpoint is loaded.

    `parameter`: its name within the module, the weight of a linear layer or the matrices of experts.
    """
    path, _, leaf = parameter.rpartition(".")
    owner = module.get_submodule(path)
    if tensor.values.ndim > 2:
        delattr(owner, leaf)
        setattr(owner, leaf, QuantizedExperts(tensor, scheme))
    else:
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, QuantizedLinear(tensor, scheme, getattr(owner, "bias", None)))


def product(rows: Tensor, tensor: QuantizedTensor, scheme: QuantScheme) -> Tensor:
    """rows `[M, K]` times one matrix, `[N, K]` -> `[M, N]`."""
    if has_kernel(rows, tensor):
        return kernel_product(rows, tensor, scheme)
    on_cpu = rows.device.type == "cpu"
    if scheme.dtype == "int8" and (on_cpu or all(size % _CUBLAS_MULTIPLE == 0 for size in tensor.values.shape)):
        return _integer_product(rows, tensor, scheme)
    rows = quantize_activations(rows, scheme).dequantized(scheme).to(rows.dtype)
    if tensor.groups == 1:
        return F.linear(rows, tensor.numbers(scheme)) * tensor.scales[:, 0]
    return F.linear(rows, tensor.dequantized(scheme))


def quantize_activations(rows: Tensor, scheme: QuantScheme) -> QuantizedTensor:
    """Activations `[M, K]` in 8 bits, with a scale for each row in fp32."""
    peaks = rows.abs().amax(1, keepdim=True).float().clamp_min(_SMALLEST_PEAK)
    values = rows.float() * (scheme.largest / peaks)
    if scheme.dtype == "int8":
        values = values.round_()
    return QuantizedTensor(values.to(getattr(torch, scheme.dtype)).view(torch.int8), peaks / scheme.largest)


def has_kernel(rows: Tensor, tensor: QuantizedTensor) -> bool:
    """Whether our Triton kernel takes such activations and matrices."""
    if not use_triton(rows.device, rows.dtype):
        return False
    return tensor.groups == 1 or tensor.values.shape[-1] // tensor.groups % _KERNEL_GROUP == 0


def kernel_product(rows: Tensor, tensor: QuantizedTensor, scheme: QuantScheme, ends: Tensor | None = None) -> Tensor:
    """A product by our Triton kernel, see `triton_matmul.product`."""
    from service.model.quantization import triton_matmul

    values = tensor.values.view(getattr(torch, scheme.dtype))
    return triton_matmul.product(rows, values, tensor.scales, ends)


def _integer_product(rows: Tensor, tensor: QuantizedTensor, scheme: QuantScheme) -> Tensor:
    values, scales = quantize_activations(rows, scheme)
    missing = _CUBLAS_ROWS - len(values) if rows.device.type == "cuda" else 0
    if missing > 0:
        values = F.pad(values, (0, 0, 0, missing))
    sums = torch._int_mm(values, tensor.values.t())[: len(rows)]  # noqa: SLF001 (no other name)
    return sums.float().mul_(scales).mul_(tensor.scales[:, 0].float()).to(rows.dtype)
