"""What an attention implementation is: it prepares a forward once, then every layer calls what it prepared.

An implementation learns of each row its sequence's pages, its block index and whether its block is final. It makes
masks, page tables and batches of them itself. A new kernel is a file with an `AttentionBackend`, a line in `registry.py` and
its name in settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    from service.model.attention.work import Capacity, Work


class RowKv(Protocol):
    """Where a row stands.

    `pages`: the pages of its sequence; rows of one sequence have the same list (the same object, not an equal one).
    The row reads the first `index` pages. If it `keeps`, it writes its block's keys and values to page `index`.
    """

    @property
    def pages(self) -> Sequence[int]:
        """The pages of its sequence."""

    @property
    def index(self) -> int:
        """Its block's place in the sequence."""

    @property
    def keeps(self) -> bool:
        """Whether its block is final."""


class AttentionForward(Protocol):
    """The attention of one forward."""

    @property
    def order(self) -> Sequence[int]:
        """The order in which the layers' rows must stand: row `i` of the tensors is place `order[i]`."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q `[R, L, heads, D]`, k and v `[R, L, kv_heads, D]` -> `[R, L, heads * D]`.

        Every row sees the pages before its block, the final blocks before it that are rows of this forward, and its
        own block.
        """


class GraphAttention(Protocol):
    """The attention of all forwards of one shape, its tables at addresses that stay, as a CUDA graph needs them."""

    def load(self, work: Work) -> None:
        """The tables of the next forward. Comes before the first call."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `AttentionForward`; rows stand in the order of their places."""


class Attention(Protocol):
    """Makes the attention of forwards over one cache."""

    def prepare(self, places: Sequence[RowKv], width: int | None = None) -> AttentionForward:
        """The attention of a forward over rows; rows of one sequence stand together, by ascending index.

        `width`: every row is computed in the same shapes, as if it read `width` pages, its own included; the order
        stays. None: as is fastest.
        """


@runtime_checkable
class GraphCapable(AttentionBackend, Protocol):
    """An attention whose forwards can be captured in a CUDA graph: a plan on the host, and tables that stay."""

    def plan(self, places: Sequence[RowKv], width: int | None = None, rows: int | None = None) -> Work:
        """The tables of a forward, filled up to `rows` rows: those behind the places write nothing."""

    def capacity(self, work: Work, width: int | None) -> Capacity:
        """The shape of a plan: plans of one capacity can be loaded into one `GraphAttention`."""

    def for_graph(self, capacity: Capacity) -> GraphAttention:
        """For all plans of one capacity."""
