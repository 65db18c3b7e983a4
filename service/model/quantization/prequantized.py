"""Reads published 8-bit weights by their names: as values with scales, or widened.

| in a file, beside a matrix `[N, K]` | content |
|---|---|
| `X.weight` | int8 or e4m3, `[N, K]` |
| `X.weight_packed`, `X.weight_shape` | int32, four values of a row in each, the first in the lowest bits, 128 added |
| `X.weight_scale` or `X.weight_scale_inv` | a scale for each block: the block is its values times the scale |
"""

from collections.abc import Collection, Mapping
from math import gcd
from typing import Any

import torch
from torch import Tensor

from service.errors import CheckpointError
from service.model.quantization.layers import QuantizedTensor
from service.model.quantization.schemes import PublishedScheme, published_scheme, scheme_named
from service.model.weight_mapping import WeightSource

_SCALES = ("_scale", "_scale_inv")
_PACKED, _SHAPE = "_packed", "_shape"


class PrequantizedWeights:
    """A source of weights, some of them in 8 bits. Scales belong to their weights and have no names here.

    `widened`: layers get all weights as if they were published wide.
    CheckpointError for scales and values that do not fit each other.
    """

    def __init__(self, source: WeightSource, published: PublishedScheme) -> None:
        self._source, self._published, self.scheme = source, published, scheme_named(published.scheme)
        names = set(source.names)
        self._scales = {
            name.removesuffix(scale): name for name in names for scale in _SCALES if name.endswith(".weight" + scale)
        }
        self._packed = {weight for weight in self._scales if {weight + _PACKED, weight + _SHAPE} <= names}
        packed_names = {weight + suffix for weight in self._packed for suffix in (_PACKED, _SHAPE)}
        self._names = names - {*self._scales.values()} - packed_names | self._packed

    @property
    def names(self) -> Collection[str]:
        return self._names

    @property
    def widened(self) -> bool:
        return self._published.widened

    def is_quantized(self, name: str) -> bool:
        return name in self._scales

    def read(self, name: str) -> Tensor:
        if not self.is_quantized(name):
            return self._source.read(name)
        return self.read_quantized(name).dequantized(self.scheme)

    def read_quantized(self, name: str) -> QuantizedTensor:
        """A matrix in 8 bits, with scales for each row in fp32."""
        values = self._values(name)
        height, depth = values.shape
        block = self._published.rows or height, min(self._published.columns or depth, depth)
        scales, expected = self._source.read(self._scales[name]), (-(-height // block[0]), -(-depth // block[1]))
        if scales.numel() != expected[0] * expected[1] or (scales.ndim == 2 and scales.shape != expected):
            raise CheckpointError(
                f"{self._scales[name]!r} has shape {list(scales.shape)}, config.json implies {list(expected)}"
            )
        rows = scales.float().reshape(expected).repeat_interleave(block[0], 0)[:height]
        return QuantizedTensor(values, _regrouped(rows, depth, block[1], gcd(block[1], depth)))

    def _values(self, name: str) -> Tensor:
        """int8, `[N, K]`."""
        if name in self._packed:
            words, shape = self._source.read(name + _PACKED), self._source.read(name + _SHAPE).tolist()
            if words.dtype == torch.int32 and len(shape) == 2 and list(words.shape) == [shape[0], -(-shape[1] // 4)]:
                values = words.contiguous().view(torch.uint8)[:, : shape[1]]
                return values.bitwise_xor(128).view(torch.int8)
            raise CheckpointError(f"{name + _PACKED!r} has shape {list(words.shape)}, expected is {shape} in int32")
        values = self._source.read(name)
        if str(values.dtype).removeprefix("torch.") != self.scheme.dtype or values.ndim != 2:
            raise CheckpointError(
                f"{name!r} is {values.dtype} of shape {list(values.shape)}, expected is a matrix of {self.scheme.dtype}"
            )
        return values.view(torch.int8)


def column_scales(scales: Tensor, depth: int, columns: slice) -> Tensor:
    """Scales `[..., G]` of `depth` columns -> the scales of some of the columns, which may lie within a group."""
    groups, length = scales.shape[-1], columns.stop - columns.start
    if groups == 1:
        return scales
    width = gcd(depth // groups, length)
    return _regrouped(scales, depth, depth // groups, width)[..., columns.start // width : columns.stop // width]


def dequantized(raw: Mapping[str, Any], source: WeightSource) -> tuple[Mapping[str, Any], WeightSource]:
    """config.json and weights of a checkpoint as if it were published with wide weights."""
    published = published_scheme(raw)
    if published is None:
        return raw, source
    wide = {key: value for key, value in raw.items() if key not in ("quantization_config", "compression_config")}
    return wide, PrequantizedWeights(source, published)


def _regrouped(scales: Tensor, depth: int, width: int, new_width: int) -> Tensor:
    """Scales of groups of `width` columns, the last perhaps smaller -> scales of groups of `new_width`."""
    return scales if width == new_width else scales.repeat_interleave(width // new_width, -1)[..., : depth // new_width]
