"""The grouping of rows into forwards: shapes depend on a row alone, and a row comes after the rows that it reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.decode.block import MASKED, Block
from service.engine import SamplingParams
from service.engine.forward.grouping import SameShapes, Together, same_shapes_for
from service.engine.forward.rows import Row
from tests.engine.forward.reads import Read, reads_of

PAGES = tuple(range(100, 200))
SAMPLING = (SamplingParams(), SamplingParams(0.7), SamplingParams(0.7, top_k=3), SamplingParams(0.7, top_p=0.5))


def row(index: int, *, writes_kv: bool = False) -> Row:
    return Row(Block((MASKED,)), index, PAGES, writes_kv, None if writes_kv else SAMPLING[0])


def places(groups) -> list[int]:
    return [int(place) for group in groups for place in group.places]


class TestTogether:
    def test_one_group_of_rows(self) -> None:
        (group,) = Together(8, 8).rows([row(5), row(0, writes_kv=True)])
        assert ([one.index for one in group.members], list(group.places), group.width) == ([5, 0], [0, 1], None)

    def test_reads_are_cut_where_logits_would_be_too_many(self) -> None:
        reads = reads_of(*(Read(SAMPLING[slot % 4]) for slot in range(5)))
        groups = Together(2, 9).reads(reads)
        assert [group.members.slot.tolist() for group in groups] == [[0, 1], [2, 3], [4]]
        assert places(groups) == [0, 1, 2, 3, 4]

    def test_fewer_logits_fit_where_one_of_them_is_sampled(self) -> None:
        reads = [Read()] * 5
        assert len(Together(9, 2).reads(reads_of(*reads))) == 1
        reads[3] = Read(SamplingParams(temperature=0.5))
        assert [len(group.members) for group in Together(9, 2).reads(reads_of(*reads))] == [2, 2, 1]


class TestSameShapes:
    @given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=30), st.integers(1, 5))
    def test_a_rows_shape_depends_on_the_row_alone(self, wanted: list[tuple[int, bool]], size: int) -> None:
        rows = [row(index, writes_kv=keeps) for index, keeps in wanted]
        groups = SameShapes(size, 4).rows(rows)
        assert sorted(places(groups)) == list(range(len(rows)))
        for group in groups:
            assert len(group.members) == size
            for one in group.members:
                assert group.width is not None
                needed = one.index + 1
                assert needed <= group.width < 2 * needed  # the next power of two: nobody else's doing
                assert group.width & (group.width - 1) == 0
            assert [rows[place] for place in group.places] == list(group.members[: len(group.places)])
            for filler in group.members[len(group.places) :]:
                assert not filler.writes_kv
                assert filler.sampling is None

    @given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
    def test_a_row_stands_behind_all_whose_pages_it_may_read(self, indices: list[int]) -> None:
        groups = SameShapes(4, 4).rows([row(index, writes_kv=True) for index in indices])
        order = [indices[place] for place in places(groups)]
        assert order == sorted(indices)

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 5))
    def test_reads_stand_beside_reads_of_their_kind(self, kinds: list[int], size: int) -> None:
        groups = SameShapes(4, size).reads(reads_of(*(Read(SAMPLING[kind]) for kind in kinds)))
        assert sorted(places(groups)) == list(range(len(kinds)))
        for group in groups:
            assert len(group.members) == size
            assert group.members.slot[: len(group.places)].tolist() == group.places.tolist()
            assert len({bool(SAMPLING[kinds[slot]].temperature) for slot in group.members.slot}) == 1
            assert len({SAMPLING[kinds[slot]].filtered for slot in group.members.slot}) == 1

    def test_a_block_longer_than_a_forward_is_a_forward_of_its_own(self) -> None:
        for device in ("cpu", "cuda"):
            assert same_shapes_for(device, 128).min_rows == 1
            assert same_shapes_for(device, 1).min_rows > 4
