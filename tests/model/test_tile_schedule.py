"""The tables of the kernels, by counting: who reads what, once, and that there is room for any of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service.model.attention.units import Unit

from service.model.attention.tile_schedule import Item, Merge, PageTables, ScheduleShape, Shape, TileSchedule, work_of
from tests.model.attention_world import RowKv, place

kinds = st.builds(
    Shape, st.sampled_from([1, 3, 4, 32]), st.sampled_from([1, 2, 3, 8]), st.sampled_from([16, 64]), st.integers(1, 40)
)
sequences = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 5), st.integers(0, 20)).filter(lambda of: of[1] + of[2] > 0),
    min_size=1,
    max_size=8,
)


def places_of(found: list[tuple[int, int, int]]) -> list[RowKv]:
    places = []
    for number, (before, final, states) in enumerate(found):
        pages = list(range(1000 * number, 1000 * number + before + final + 1))
        places += [place(pages, before + index, writes_kv=True) for index in range(final)]
        places += [place(pages, before + final, writes_kv=False) for _ in range(states)]
    return places


def check(work: TileSchedule, places: list[RowKv], kind: Shape, padding: int) -> None:
    """Every token's whole prefix is read once, its own keys by one program, and parts are merged where they are."""
    items = [Item(*item) for item in work.items.tolist()]
    merges = {Merge(*merge).part: Merge(*merge) for merge in work.merges.tolist()}
    read, own, whole = Counter[int](), Counter[int](), Counter[int]()
    for item in items:
        assert 0 < item.tokens * kind.group <= work.tile
        place = places[item.first // kind.block] if item.first // kind.block < len(places) else None
        for token in range(item.first, item.first + item.tokens):
            read[token] += item.stop - item.start
            own[token] += item.own_start <= token < item.own_stop
            whole[token] += item.part < 0
        if place is not None and item.stop > item.start:
            used = range(item.start // kind.block, -(-item.stop // kind.block))
            assert [work.pages[item.table + page] for page in used] == [place.pages[page] for page in used]
    for merge in merges.values():
        parts = sorted(item.part for item in items if item.first == merge.first and item.part >= 0)
        assert parts == list(range(merge.part, merge.part + merge.num_parts))
        for token in range(merge.first, merge.first + merge.tokens):
            whole[token] += 1
    tokens = range((len(places) + padding) * kind.block)
    assert all(whole[token] == own[token] == 1 for token in tokens)
    for number, place in enumerate(places):
        for token in range(number * kind.block, (number + 1) * kind.block):
            within = (place.index * kind.block) - read[token]  # the rest is among the unit's own keys
            assert 0 <= within <= token // kind.block * kind.block
        assert work.targets[number] == (place.pages[place.index] if place.writes_kv else -1)
    assert (work.targets[len(places) :] == -1).all()


Found = list[tuple[int, int, int]]


@settings(max_examples=25)
@given(kinds, sequences, st.integers(0, 9), st.booleans())
def test_all_is_read_once_and_there_is_room(kind: Shape, found: Found, padding: int, fixed: bool) -> None:
    check_read_once(kind, found, padding, fixed)


@pytest.mark.slow
@settings(max_examples=500)
@given(kinds, sequences, st.integers(0, 9), st.booleans())
def test_all_is_read_once_in_many_plans(kind: Shape, found: Found, padding: int, fixed: bool) -> None:
    check_read_once(kind, found, padding, fixed)


def check_read_once(kind: Shape, found: Found, padding: int, fixed: bool) -> None:
    places = places_of(found)
    width = max(place.index for place in places) + 1 if fixed else None
    work = work_of(places, kind, PageTables(), width, padding)
    check(work, places, kind, padding)
    assert ScheduleShape.of(work).fits(ScheduleShape.enough(len(places) + padding, work.tile, width, kind))


def test_a_prefix_is_read_once_for_all_states_that_fit_a_tile() -> None:
    pages = list(range(1001))
    rows = [place(pages, 1000, writes_kv=False) for _ in range(8)]
    work = work_of(rows, Shape(4, 2, 64, 1), PageTables())
    assert [(item.start, item.stop) for item in map(Item._make, work.items.tolist())] == [(0, 4000)]


def test_a_list_of_pages_that_has_changed_is_read_again() -> None:
    tables, pages = PageTables(), [1, 2, 3]
    unit = Unit(0, 1, 3, pages)
    assert tables.of([unit])[1].tolist() == [1, 2, 3]
    pages[1] = 9
    assert tables.of([unit])[1].tolist() == [1, 9, 3]
