"""The partition of rows into forwards: shapes depend on a row alone, and a row comes after the rows that it reads."""

from hypothesis import given
from hypothesis import strategies as st

from service.decode.block import MASKED, Block
from service.engine import SamplingParams
from service.engine.forward.partition import FixedShapes, WholeBatch
from service.engine.forward.rows import Row
from tests.engine.forward.sampled import Position, batch_of

PAGES = tuple(range(100, 200))
SAMPLING = (SamplingParams(), SamplingParams(0.7), SamplingParams(0.7, top_k=3), SamplingParams(0.7, top_p=0.5))


def row(index: int, *, writes_kv: bool = False) -> Row:
    return Row(Block((MASKED,)), index, PAGES, writes_kv, None if writes_kv else SAMPLING[0])


def indices_of(groups) -> list[int]:
    return [int(index) for group in groups for index in group.indices]


class TestWholeBatch:
    def test_positions_are_cut_where_logits_would_be_too_many(self) -> None:
        batch = batch_of(*(Position(SAMPLING[index % 4]) for index in range(5)))
        groups = WholeBatch(2, 9).positions(batch)
        assert [group.members.flat.tolist() for group in groups] == [[0, 1], [2, 3], [4]]
        assert indices_of(groups) == [0, 1, 2, 3, 4]

    def test_fewer_logits_fit_where_noise_is_added_to_some(self) -> None:
        positions = [Position()] * 5
        assert len(WholeBatch(9, 2).positions(batch_of(*positions))) == 1
        positions[3] = Position(SamplingParams(temperature=0.5))
        assert [len(group.members) for group in WholeBatch(9, 2).positions(batch_of(*positions))] == [2, 2, 1]


class TestFixedShapes:
    @given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=30), st.integers(1, 5))
    def test_a_rows_shape_depends_on_the_row_alone(self, wanted: list[tuple[int, bool]], size: int) -> None:
        rows = [row(index, writes_kv=writes_kv) for index, writes_kv in wanted]
        groups = FixedShapes(size, 4).rows(rows)
        assert sorted(indices_of(groups)) == list(range(len(rows)))
        for group in groups:
            assert len(group.members) == size
            for member in group.members:
                assert group.width is not None
                needed = member.index + 1
                assert needed <= group.width < 2 * needed  # the next power of two: nobody else's doing
                assert group.width & (group.width - 1) == 0
            assert [rows[index] for index in group.indices] == list(group.members[: len(group.indices)])
            for padding in group.members[len(group.indices) :]:
                assert not padding.writes_kv
                assert padding.sampling is None

    @given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
    def test_a_row_comes_after_all_whose_pages_it_may_read(self, blocks: list[int]) -> None:
        groups = FixedShapes(4, 4).rows([row(index, writes_kv=True) for index in blocks])
        order = [blocks[index] for index in indices_of(groups)]
        assert order == sorted(blocks)

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 5))
    def test_positions_stand_beside_positions_of_their_kind(self, kinds: list[int], size: int) -> None:
        groups = FixedShapes(4, size).positions(batch_of(*(Position(SAMPLING[kind]) for kind in kinds)))
        assert sorted(indices_of(groups)) == list(range(len(kinds)))
        for group in groups:
            assert len(group.members) == size
            assert group.members.flat[: len(group.indices)].tolist() == group.indices.tolist()
            assert len({bool(SAMPLING[kinds[index]].temperature) for index in group.members.flat}) == 1
            assert len({SAMPLING[kinds[index]].filtered for index in group.members.flat}) == 1
