"""Pages are reserved all together or not at all, and released once."""

from __future__ import annotations

import pytest

from service.engine.prefix_cache import PagePool
from service.errors import SettingsError


def test_every_page_can_be_had() -> None:
    pool = PagePool(6)
    assert (pool.capacity, pool.num_free, pool.num_used) == (6, 6, 0)
    assert sorted(pool.reserve(6) or []) == [0, 1, 2, 3, 4, 5]


def test_all_or_nothing() -> None:
    pool = PagePool(4)
    pages = pool.reserve(3)
    assert pages is not None
    assert pool.reserve(2) is None
    assert pool.num_free == 1
    assert pool.reserve(1) is not None
    assert pool.reserve(0) == []


def test_pages_come_back_and_only_once() -> None:
    pool = PagePool(4)
    pages = pool.reserve(3)
    assert pages is not None
    pool.release(pages)
    assert pages == []
    pool.release(pages)
    assert pool.num_free == 4
    again = pool.reserve(4)
    assert again is not None
    assert len(set(again)) == 4


@pytest.mark.parametrize("num_pages", [-1, 0])
def test_a_cache_without_a_page_is_refused(num_pages: int) -> None:
    with pytest.raises(SettingsError, match=rf"the KV cache has {num_pages} pages, at least 1 is needed"):
        PagePool(num_pages)
