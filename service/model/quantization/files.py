"""Reads published 8-bit matrices: values and scales of a weight, by the weight's name, or both as a wide weight.

| in a file, beside a matrix `[N, K]` | what |
|---|---|
| `X.weight` | int8 or e4m3, `[N, K]` |
| `X.weight_packed`, `X.weight_shape` | int32, four numbers of a row in each, the first in the lowest bits, 128 added |
| `X.weight_scale` or `X.weight_scale_inv` | a scale for each block: a number of it times its scale is the weight |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import gcd
from typing import Any, Protocol

import torch
from torch import Tensor

from service.errors import CheckpointError
from service.model.quantization.bits import Bits
from service.model.quantization.forms import form_named
from service.model.quantization.published import Published, published_form

_SCALES = ("_scale", "_scale_inv")
_PACKED, _SHAPE = "_packed", "_shape"


class Source(Protocol):
    """Weights by their published names (`weights.WeightSource`)."""

    @property
    def names(self) -> Collection[str]:
        """Every weight there is."""

    def read(self, name: str) -> Tensor:
        """One of them."""


class PublishedWeights:
    """A source of weights some of which are in 8 bits. Scales are parts of their weights, and have no names here.

    CheckpointError for scales and numbers that do not fit each other.
    """

    def __init__(self, source: Source, how: Published) -> None:
        self._source, self._how, self.form = source, how, form_named(how.form)
        names = set(source.names)
        self._scales = {
            name.removesuffix(scale): name for name in names for scale in _SCALES if name.endswith(".weight" + scale)
        }
        self._packed = {weight for weight in self._scales if {weight + _PACKED, weight + _SHAPE} <= names}
        parts = {weight + suffix for weight in self._packed for suffix in (_PACKED, _SHAPE)}
        self._names = names - {*self._scales.values()} - parts | self._packed

    @property
    def names(self) -> Collection[str]:
        """Every weight there is."""
        return self._names

    def has_bits(self, name: str) -> bool:
        """Whether a weight is in 8 bits."""
        return name in self._scales

    def read(self, name: str) -> Tensor:
        """One of the weights, wide."""
        if not self.has_bits(name):
            return self._source.read(name)
        return self.bits(name).widened(self.form)

    def bits(self, name: str) -> Bits:
        """A matrix in 8 bits, with scales for each row in fp32."""
        values = self._values(name)
        height, depth = values.shape
        block = self._how.rows or height, min(self._how.columns or depth, depth)
        scales, expected = self._source.read(self._scales[name]), (-(-height // block[0]), -(-depth // block[1]))
        if scales.numel() != expected[0] * expected[1] or (scales.ndim == 2 and scales.shape != expected):
            raise CheckpointError(
                f"{self._scales[name]!r} has shape {list(scales.shape)}, config.json implies {list(expected)}"
            )
        rows = scales.float().reshape(expected).repeat_interleave(block[0], 0)[:height]
        return Bits(values, _regrouped(rows, depth, block[1], gcd(block[1], depth)))

    def _values(self, name: str) -> Tensor:
        """int8 bits, `[N, K]`."""
        if name in self._packed:
            words, shape = self._source.read(name + _PACKED), self._source.read(name + _SHAPE).tolist()
            if words.dtype == torch.int32 and len(shape) == 2 and list(words.shape) == [shape[0], -(-shape[1] // 4)]:
                numbers = words.contiguous().view(torch.uint8)[:, : shape[1]]
                return numbers.bitwise_xor(128).view(torch.int8)
            raise CheckpointError(f"{name + _PACKED!r} has shape {list(words.shape)}, expected is {shape} in int32")
        values = self._source.read(name)
        if str(values.dtype).removeprefix("torch.") != self.form.dtype or values.ndim != 2:
            raise CheckpointError(
                f"{name!r} is {values.dtype} of shape {list(values.shape)}, expected is a matrix of {self.form.dtype}"
            )
        return values.view(torch.int8)


def cut_columns(scales: Tensor, depth: int, own: slice) -> Tensor:
    """Scales `[..., G]` of `depth` columns -> those of a part of the columns, which may lie within a group."""
    groups, length = scales.shape[-1], own.stop - own.start
    if groups == 1:
        return scales
    width = gcd(depth // groups, length)
    return _regrouped(scales, depth, depth // groups, width)[..., own.start // width : own.stop // width]


def widened(raw: Mapping[str, Any], source: Source) -> tuple[Mapping[str, Any], Source]:
    """config.json and weights of a checkpoint as if it were published with wide weights."""
    how = published_form(raw)
    if how is None:
        return raw, source
    kept = {key: value for key, value in raw.items() if key not in ("quantization_config", "compression_config")}
    return kept, PublishedWeights(source, how)


def _regrouped(scales: Tensor, depth: int, width: int, least: int) -> Tensor:
    """Scales of groups of `width` columns, the last perhaps smaller -> scales of groups of `least`."""
    return scales if width == least else scales.repeat_interleave(width // least, -1)[..., : depth // least]
