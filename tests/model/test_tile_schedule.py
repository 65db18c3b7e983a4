"""The tables of the kernels, by counting: who reads what, once, and that there is room for any of them."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from service.model.attention.shared_prefix import PrefixUnit
from service.model.attention.tile_schedule import (
    AttendItem,
    PageTables,
    ScheduleShape,
    TileConfig,
    TileSchedule,
    schedule_tiles,
)
from tests.model.attention_world import RowKv, row_at

kinds = st.builds(
    TileConfig,
    st.sampled_from([1, 3, 4, 32]),
    st.sampled_from([1, 2, 3, 8]),
    st.sampled_from([16, 64]),
    st.integers(1, 40),
)
sequences = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 5), st.integers(0, 20)).filter(lambda of: of[1] + of[2] > 0),
    min_size=1,
    max_size=8,
)


def rows_of(shapes: list[tuple[int, int, int]]) -> list[RowKv]:
    rows = []
    for number, (before, final, states) in enumerate(shapes):
        pages = list(range(1000 * number, 1000 * number + before + final + 1))
        rows += [row_at(pages, before + index, writes_kv=True) for index in range(final)]
        rows += [row_at(pages, before + final, writes_kv=False) for _ in range(states)]
    return rows


def check(schedule: TileSchedule, rows: list[RowKv], kind: TileConfig, padding: int) -> None:
    """Every token's whole prefix is read once, its own keys by one program, and parts are merged where they are."""
    items = [AttendItem(*item) for item in schedule.items.tolist()]
    parts = Counter((item.first, item.tokens, item.first_part, item.num_parts) for item in items)
    read, own_keys = Counter[int](), Counter[int]()
    for item in items:
        assert 0 < item.tokens * kind.group <= schedule.tile
        row = rows[item.first // kind.block] if item.first // kind.block < len(rows) else None
        for token in range(item.first, item.first + item.tokens):
            read[token] += item.stop - item.start
            own_keys[token] += item.number == item.num_parts - 1 and token >= item.own_start
        if row is not None and item.stop > item.start:
            used = range(item.start // kind.block, -(-item.stop // kind.block))
            assert [schedule.pages[item.table + page] for page in used] == [row.pages[page] for page in used]
    assert all(count == num_parts for (*_, num_parts), count in parts.items())
    written = [item.first_part + item.number for item in items if item.num_parts > 1]
    assert sorted(written) == list(range(schedule.num_parts))
    tokens = range((len(rows) + padding) * kind.block)
    assert all(own_keys[token] == 1 for token in tokens)
    for number, row in enumerate(rows):
        for token in range(number * kind.block, (number + 1) * kind.block):
            within = (row.index * kind.block) - read[token]  # the rest is among the unit's own keys
            assert 0 <= within <= token // kind.block * kind.block
        assert schedule.targets[number] == (row.pages[row.index] if row.writes_kv else -1)
    assert (schedule.targets[len(rows) :] == -1).all()


SequenceShapes = list[tuple[int, int, int]]


@settings(max_examples=10)
@given(kinds, sequences, st.integers(0, 9), st.booleans())
def test_all_is_read_once_and_there_is_room(
    kind: TileConfig, shapes: SequenceShapes, padding: int, fixed: bool
) -> None:
    rows = rows_of(shapes)
    width = max(row.index for row in rows) + 1 if fixed else None
    schedule = schedule_tiles(rows, kind, PageTables(), width, padding)
    check(schedule, rows, kind, padding)
    assert schedule.shape.fits(ScheduleShape.sufficient(len(rows) + padding, schedule.tile, width, kind))


def test_a_prefix_is_read_once_for_all_states_that_fit_a_tile() -> None:
    pages = list(range(1001))
    rows = [row_at(pages, 1000, writes_kv=False) for _ in range(8)]
    schedule = schedule_tiles(rows, TileConfig(4, 2, 64, 1), PageTables())
    assert [(item.start, item.stop) for item in map(AttendItem._make, schedule.items.tolist())] == [(0, 4000)]


def test_a_list_of_pages_that_has_changed_is_read_again() -> None:
    tables, pages = PageTables(), [1, 2, 3]
    unit = PrefixUnit(0, 1, 3, pages)
    assert tables.concatenated([unit])[1].tolist() == [1, 2, 3]
    pages[1] = 9
    assert tables.concatenated([unit])[1].tolist() == [1, 9, 3]
    pages.append(4)
    assert tables.concatenated([PrefixUnit(0, 1, 4, pages)])[1].tolist() == [1, 9, 3, 4]
    pages[:] = [9, 9, 9, 9, 5]
    assert tables.concatenated([PrefixUnit(0, 1, 5, pages)])[1].tolist() == [9, 9, 9, 9, 5]
    pages[:] = [7, 8, 6]
    assert tables.concatenated([unit])[1].tolist() == [7, 8, 6]
