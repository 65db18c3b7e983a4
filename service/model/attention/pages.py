"""The forms in which pages hold keys and values: in the model's type, or in 8 bits with a scale for each head.

Attention reads only numbers that a page would hold. In 8 bits the keys (after the rotation) and values of every row are
rounded where they are made, also for the row itself. So a number is the same in a page, in an earlier row of the
forward, and in the row. Prefix hits, chunks of a prompt, preemption and drafts then change no answer.

A new form is a class here with a line in `PAGE_FORMS`. `triton_layers.py` and `triton_kernels.py` have the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from service.errors import SettingsError
from service.model.config import ModelConfig

#: the form of pages by default: the model's type
AUTO = "auto"
#: the largest number in 8 bits, the same for both signs
LARGEST = 127.0
#: the type of a scale, and the largest one
_SCALE = torch.float16
_LARGEST_SCALE = torch.finfo(_SCALE).max


class PagePart(NamedTuple):
    """A tensor of pages `[pages, L, kv_heads, N]`, and what rows write there, `[R, L, kv_heads, N]`."""

    pages: Tensor
    rows: Tensor


class Pages(Protocol):
    """Keys, or values, in pages: of all layers, or of one. `numbers` `[..., pages, L, kv_heads, D]`.

    `scales` `[..., pages, L, kv_heads]`: the factor of each head; None: the numbers are in the model's type.
    """

    @property
    def numbers(self) -> Tensor: ...

    @property
    def scales(self) -> Tensor | None: ...

    @classmethod
    def zeros(cls, shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> Self:
        """Empty pages. `dtype`: the model's type."""

    @staticmethod
    def head_bytes(size: int, itemsize: int) -> int:
        """The bytes of a head of `size` numbers. `itemsize`: the bytes of a number in the model's type."""

    def layers(self) -> Sequence[Self]:
        """The pages of each layer."""

    def read(self, pages: Tensor) -> Tensor:
        """One layer's numbers of some pages, in the model's type: `[P]` -> `[P, L, kv_heads, D]`."""

    def held(self, rows: Tensor) -> tuple[Tensor, Sequence[PagePart]]:
        """Rows `[R, L, kv_heads, D]` as pages would hold them, in the model's type; and the parts to be written."""


class WidePages(NamedTuple):
    """Pages in the model's type."""

    numbers: Tensor
    scales: None = None

    @classmethod
    def zeros(cls, shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> WidePages:
        return cls(torch.zeros(shape, device=device, dtype=dtype))

    @staticmethod
    def head_bytes(size: int, itemsize: int) -> int:
        return size * itemsize

    def layers(self) -> list[WidePages]:
        return [WidePages(layer) for layer in self.numbers.unbind()]

    def read(self, pages: Tensor) -> Tensor:
        return self.numbers.index_select(0, pages)

    def held(self, rows: Tensor) -> tuple[Tensor, Sequence[PagePart]]:
        return rows, (PagePart(self.numbers, rows),)


class Int8Pages(NamedTuple):
    """Pages in 8 bits, with a float16 scale for each token and key head. `dtype`: the model's type."""

    numbers: Tensor
    scales: Tensor
    dtype: torch.dtype

    @classmethod
    def zeros(cls, shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> Int8Pages:
        numbers = torch.zeros(shape, device=device, dtype=torch.int8)
        return cls(numbers, torch.zeros(shape[:-1], device=device, dtype=_SCALE), dtype)

    @staticmethod
    def head_bytes(size: int, itemsize: int) -> int:  # noqa: ARG004
        return size + _SCALE.itemsize

    def layers(self) -> list[Int8Pages]:
        pairs = zip(self.numbers.unbind(), self.scales.unbind(), strict=True)
        return [Int8Pages(numbers, scales, self.dtype) for numbers, scales in pairs]

    def read(self, pages: Tensor) -> Tensor:
        return Rounded(self.numbers.index_select(0, pages), self.scales.index_select(0, pages)).widened(self.dtype)

    def held(self, rows: Tensor) -> tuple[Tensor, Sequence[PagePart]]:
        rounded = round_heads(rows)
        numbers = PagePart(self.numbers, rounded.numbers)
        scales = PagePart(self.scales.unsqueeze(-1), rounded.scales.unsqueeze(-1))
        return rounded.widened(self.dtype), (numbers, scales)


#: the names of the setting `kv_cache_dtype`
PAGE_FORMS: Mapping[str, type[WidePages | Int8Pages]] = {AUTO: WidePages, "int8": Int8Pages}


def page_form(name: str) -> type[WidePages | Int8Pages]:
    """The form of a name. SettingsError, which lists the names, if there is none."""
    if name not in PAGE_FORMS:
        allowed = ", ".join(sorted(PAGE_FORMS))
        raise SettingsError(f"kv_cache_dtype is {name!r}, allowed are {allowed}", param="kv_cache_dtype")
    return PAGE_FORMS[name]


def page_bytes(config: ModelConfig, itemsize: int, kv_cache_dtype: str = AUTO) -> int:
    """The bytes of a page over all layers. `itemsize`: the bytes of a number in the model's type."""
    heads = 2 * config.num_kv_layers * config.block_size * config.num_kv_heads
    return heads * page_form(kv_cache_dtype).head_bytes(config.head_dim, itemsize)


class Rounded(NamedTuple):
    """Heads in 8 bits: int8 `numbers` `[..., D]` times their `scales` `[...]`, float16."""

    numbers: Tensor
    scales: Tensor

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The heads in a type, `[..., D]`. The product is exact in float32."""
        return (self.numbers * self.scales.float().unsqueeze(-1)).to(dtype)


def round_heads(heads: Tensor) -> Rounded:
    """Rounds each head `[..., D]` to the nearest 255 multiples of its scale, the largest number / 127 in float16.

    The error is at most half a scale. Numbers beyond 8.3 million become that number. A head without a number above
    3.7 millionths is 0. A head with a number that is not finite has none that is.
    """
    heads = heads.float()
    peaks = heads.abs().amax(-1)
    finite = (peaks / LARGEST).clamp(max=_LARGEST_SCALE)
    scales = torch.where(peaks < math.inf, finite, math.inf).to(_SCALE)
    steps = torch.where(scales > 0, scales.float(), 1.0).unsqueeze(-1)
    return Rounded((heads / steps).clamp_(-LARGEST, LARGEST).round_().to(torch.int8), scales)
