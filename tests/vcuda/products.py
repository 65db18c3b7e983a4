"""Launches and bytes of the products of a decoder layer of SDAR-8B, by scheme and tokens, on the virtual device.

    TRITON_INTERPRET=1 .venv/bin/python -m tests.vcuda.products dev/lab/results/8-bit-products.json

Nothing is timed.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.shapes import shape_named
from service.model.quantization.layers import QuantizedLinear, QuantizedTensor
from service.model.quantization.schemes import QUANT_SCHEMES
from tests.vcuda.device import Operation, Recording, VirtualDevice, VirtualTensor
from tests.vcuda.torch_cuda import virtual_cuda

SHAPE, TOKENS = "sdar-8b", (16, 64, 256, 1024)


def counted_products(tokens: tuple[int, ...] = TOKENS) -> Iterator[dict[str, Any]]:
    """A row for each scheme and number of tokens. `launches`: by kernel. `moved_mb`: read and written, 10^6 bytes."""
    with virtual_cuda(shapes_only=True, total_bytes=2**50) as device, torch.inference_mode():
        for count in tokens:
            for scheme in (None, *QUANT_SCHEMES):
                yield _row(device, count, scheme)


def _row(device: VirtualDevice, tokens: int, scheme: str | None) -> dict[str, Any]:
    launches, moved = Counter[str](), 0
    for width, depth in _matrices():
        operations = _operations(device, _layer(width, depth, scheme), _on_device(torch.bfloat16, 1, tokens, depth))
        launches.update(operation.name for operation in operations)
        moved += sum(operation.moved_bytes for operation in operations)
    return {
        "shape": SHAPE,
        "tokens": tokens,
        "quantization": scheme,
        "launches": dict(sorted(launches.items())),
        "moved_mb": round(moved / 1e6, 1),
    }


def _matrices() -> list[tuple[int, int]]:
    """Rows and columns of the four matrices of a layer."""
    shape = shape_named(SHAPE)
    hidden, inner = shape.hidden_size, shape.intermediate_size
    heads, keys = (shape.head_dim * count for count in (shape.num_attention_heads, shape.num_key_value_heads))
    return [(heads + 2 * keys, hidden), (hidden, heads), (2 * inner, hidden), (hidden, inner)]


def _layer(width: int, depth: int, scheme: str | None) -> nn.Module:
    if scheme is not None:
        values = QuantizedTensor(_on_device(torch.int8, width, depth), _on_device(torch.bfloat16, width, 1))
        return QuantizedLinear(values, QUANT_SCHEMES[scheme])
    with torch.device("meta"):
        layer = nn.Linear(depth, width, bias=False)
    layer.weight = nn.Parameter(_on_device(torch.bfloat16, width, depth), requires_grad=False)
    return layer


def _on_device(dtype: torch.dtype, *sizes: int) -> VirtualTensor:
    return VirtualTensor(torch.empty(*sizes, dtype=dtype, device="meta"))


def _operations(device: VirtualDevice, layer: nn.Module, rows: Tensor) -> list[Operation]:
    """The kernels of a product, warm."""
    layer(rows)
    recording = Recording()
    device.begin_capture(recording)
    layer(rows)
    device.end_capture()
    return recording.operations


if __name__ == "__main__":
    lines = [json.dumps(row) for row in counted_products()]
    Path(sys.argv[1]).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
