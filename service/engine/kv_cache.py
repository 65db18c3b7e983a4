"""The bookkeeping of KV pages. All pages of a request are reserved when it is admitted.

A page holds one block over all layers, MRP's included. The memory itself is `service.model.attention.PagedCache`.
"""

from __future__ import annotations

from service.errors import SettingsError


class PagePool:
    """Free and used pages."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise SettingsError(f"the KV cache has {num_pages} pages, at least 1 is needed", param="kv_cache_tokens")
        self.capacity = num_pages
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Pages that can be reserved now."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Pages reserved now."""
        return self.capacity - len(self._free)

    def reserve(self, count: int) -> list[int] | None:
        """Takes `count` pages. None, and no page is taken, if fewer are free."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def release(self, pages: list[int]) -> None:
        """Returns pages to the pool and empties the list, so that no page is returned twice."""
        self._free.extend(reversed(pages))
        pages.clear()
