"""Sharing of pages: tokens are compared, pages are counted, and the oldest leaf is evicted first."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.prefix_cache import Lease, Prefix, PrefixCache
from service.errors import SettingsError
from tests.engine.helpers import audit

A, B, C, D = (1, 2), (3, 4), (5, 6), (7, 8)


def cache(pages: int = 10, *, shares: bool = True) -> PrefixCache:
    return PrefixCache(pages, shares)


def reserve(target: PrefixCache, count: int, prefix: Prefix, limit: int = 0) -> Lease | None:
    lease = Lease([], prefix, max(count, limit), wanted=count)
    return lease if target.fill(lease) else None


def lease(target: PrefixCache, *blocks: tuple[int, ...], more: int = 0, salt: str = "", mrp: bool = False) -> Lease:
    reserved = reserve(target, len(blocks) + more, Prefix(blocks, salt, mrp))
    assert reserved is not None
    for tokens in blocks[reserved.num_shared :]:
        target.publish(reserved, tokens)
    return reserved


def leave(target: PrefixCache, *blocks: tuple[int, ...], salt: str = "", mrp: bool = False) -> list[int]:
    held = lease(target, *blocks, salt=salt, mrp=mrp)
    pages = list(held.pages)
    target.release(held)
    return pages


def shared(target: PrefixCache, *blocks: tuple[int, ...], salt: str = "", mrp: bool = False) -> list[int]:
    return [node.page for node in target._match(Prefix(blocks, salt, mrp))]


class TestSharing:
    def test_the_longest_equal_prefix_is_shared(self) -> None:
        target = cache()
        pages = leave(target, A, B, C)
        assert shared(target, A, B, C, D) == pages
        assert shared(target, A, B, D, C) == pages[:2]
        assert shared(target, B, C) == []
        assert shared(target, A, C) == pages[:1]
        assert target.num_used == 0

    def test_equal_hashes_are_not_equal_tokens(self) -> None:
        assert hash((-1, 0)) == hash((-2, 0))
        target = cache()
        leave(target, (-1, 0))
        assert shared(target, (-2, 0)) == []
        assert len(shared(target, (-1, 0))) == 1


class TestReset:
    def test_blocks_that_no_request_holds_are_dropped(self) -> None:
        target = cache()
        running = lease(target, A, B)
        leave(target, A, B, C)
        leave(target, D)
        target.drop_idle()
        assert shared(target, A, B, C) == running.pages
        assert shared(target, D) == []
        audit(target, [running])
        target.release(running)
        target.drop_idle()
        assert shared(target, A) == []
        audit(target, [])


class TestMrp:
    def test_a_replaced_page_stays_readable(self) -> None:
        target = cache()
        reader = lease(target, A, B, more=1)
        old = list(reader.pages)
        newer = lease(target, A, C, mrp=True)
        assert reader.pages == old
        assert newer.pages[0] != old[0]
        audit(target, [reader, newer])
        assert target.num_used == 5
        target.release(newer)
        audit(target, [reader])
        target.publish(reader, D)
        target.release(reader)
        audit(target, [])
        assert (target.num_used, target.capacity - len(target._free)) == (0, 4)
        assert len(shared(target, A, B, D)) == 3


class TestEviction:
    def test_the_least_recently_used_goes_first_and_leaves_before_their_parents(self) -> None:
        target = cache(4)
        for blocks in ([A, B], [C, D], [A, B], [(9, 9)]):
            leave(target, *blocks)
        assert [len(shared(target, *blocks)) for blocks in ([C, D], [A, B], [(9, 9)])] == [1, 2, 1]
        leave(target, C)
        leave(target, (0, 1), (0, 2))
        audit(target, [])
        left = [len(shared(target, *blocks)) for blocks in ([C], [A, B], [(9, 9)], [(0, 1), (0, 2)])]
        assert left == [1, 0, 1, 2]

    def test_all_or_nothing(self) -> None:
        target = cache(4)
        leave(target, A, B)
        leave(target, C)
        order = list(target._idle)
        assert reserve(target, 5, Prefix([A, B])) is None
        assert list(target._idle) == order
        held = lease(target, (9, 9), more=1)
        assert reserve(target, 3, Prefix([A, D])) is None
        audit(target, [held])

    def test_given_back_once(self) -> None:
        target = cache(4)
        held = lease(target, A, more=1)
        target.release(held)
        target.release(held)
        audit(target, [])
        assert len(lease(target, B, C, D, (9, 9)).pages) == 4


@given(st.integers(0, 2**32), st.integers(4, 14), st.booleans())
def test_any_course_of_events_keeps_the_books(seed: int, pages: int, mrp: bool) -> None:
    """What is found was written with these tokens and with what is needed, and no page is lost or held twice."""
    rng, target = random.Random(seed), cache(pages)
    live: list[tuple[Lease, list[tuple[int, ...]]]] = []
    content: dict[int, tuple[str, list[tuple[int, ...]], bool]] = {}
    for _ in range(80):
        action = rng.random()
        if action < 0.4:
            blocks = [rng.choice([A, B]) for _ in range(rng.randint(0, 4))]
            prefix = Prefix(blocks, rng.choice(["", "x"]), mrp and rng.random() < 0.5)
            if reserved := reserve(target, len(blocks) + rng.randint(1, 2), prefix, limit=8):
                for index in range(reserved.num_shared):
                    salt, path, with_mrp = content[reserved.pages[index]]
                    assert (salt, path) == (prefix.salt, blocks[: index + 1])
                    assert with_mrp or not prefix.mrp
                live.append((reserved, blocks[: reserved.num_shared]))
        elif live and action < 0.8:
            held, path = rng.choice(live)
            if held.num_shared < len(held.pages):
                wanted = held.prefix.blocks
                path.append(wanted[len(path)] if len(path) < len(wanted) else rng.choice([A, B]))
                content[held.pages[held.num_shared]] = (held.prefix.salt, list(path), held.prefix.mrp)
                target.publish(held, path[-1])
        elif live and action < 0.9:
            held, path = rng.choice(live)
            held.want(len(held.pages) - 1)
            free = target.num_available
            assert target.grow(held) == (len(held.pages) == held.wanted)
            assert len(held.pages) == held.wanted or not free
        elif live:
            target.release(live.pop(rng.randrange(len(live)))[0])
        audit(target, [held for held, _ in live])
    for held, _ in live:
        target.release(held)
    audit(target, [])
    assert target.num_used == 0
    assert reserve(target, pages, Prefix()) is not None


def test_a_cache_that_is_emptied_has_all_pages_and_knows_nothing() -> None:
    target = cache(6)
    leave(target, A, B, C, mrp=True)
    leave(target, A, D)
    target.clear()
    audit(target, [])
    assert shared(target, A) == []
    assert len(lease(target, A, B, C, D, more=2).pages) == 6


@pytest.mark.parametrize("num_pages", [-1, 0])
def test_a_cache_without_a_page_is_refused(num_pages: int) -> None:
    with pytest.raises(SettingsError, match=rf"the KV cache has {num_pages} pages, at least 1 is needed"):
        PrefixCache(num_pages)
