"""Triton's kernels of paged attention against attention by its definition: by its interpreter, or on CUDA if there."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.model.attention import AttentionBackend, attention_backend, tile_schedule
from tests.model.attention_world import Kind, Shape, World, shapes

HEADS = [(1, 1), (4, 4), (4, 2), (6, 2), (4, 1)]


FEW = shapes(4, 3, 2)
KINDS = st.builds(
    Kind,
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from(HEADS),
    st.sampled_from([8, 12, 16]),
    st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16]),
    causal=st.booleans(),
)


@pytest.fixture(scope="module", autouse=True)
def device(triton_device: str) -> str:
    return triton_device


@pytest.fixture
def short_splits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tile_schedule, "MIN_SPLIT", 4)
    monkeypatch.setattr(tile_schedule, "FIXED_SPLIT", 8)
    return


def triton(world: World) -> AttentionBackend:
    return attention_backend(world.cache, "triton")


@settings(max_examples=8)
@given(KINDS, st.lists(FEW, min_size=1, max_size=2), st.sampled_from([(4, 1), (8, 8), (256, 1)]), st.integers(0, 2**31))
def test_rows_see_their_own_sequence_as_in_dense_attention(
    device: str, kind: Kind, of: list[Shape], sizes: tuple[int, int], seed: int
) -> None:
    """However rows are cut into forwards and tiles, and prefixes into parts. Nothing is read that nobody has written.

    `sizes`: the tokens of a part, and the share of programs that few rows have as tiles.
    """
    world, rng = World(replace(kind, device=device), of, seed), random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_schedule, "MIN_SPLIT", sizes[0])
        patch.setattr(tile_schedule, "TILE_SHARE", sizes[1])
        world.check_in_parts(triton(world), rng)


@pytest.mark.parametrize(
    "heads", [(6, 2), *(pytest.param(heads, marks=pytest.mark.slow) for heads in HEADS if heads != (6, 2))]
)
@pytest.mark.parametrize("causal", [False, True])
def test_the_interpreter_in_float64_is_the_definition(
    device: str, short_splits: None, heads: tuple[int, int], causal: bool
) -> None:
    """Of the algorithm itself only float64's rounding is left."""
    if device == "cuda":
        pytest.skip("float64 is for the interpreter")
    world = World(Kind(4, heads, causal=causal), [Shape(9, 3, 3), Shape(0, 5, 0), Shape(0, 0, 2), Shape(3, 0, 1)], 7)
    world.check(triton(world), world.all_rows)


def test_a_long_prefix_is_divided_and_merged(device: str) -> None:
    """A lone row behind 1,200 tokens, at sizes of a published checkpoint. A second layer finds the counters at 0."""
    world = World(Kind(4, (4, 2), 128, torch.bfloat16, device), [Shape(300, 0, 1), Shape(2, 0, 1)], 1)
    attention = triton(world)
    schedule = attention.plan(world.all_rows)
    assert [item[6:] for item in schedule.items.tolist()] == [[n, 0, 5] for n in range(5)] + [[0, 5, 1]]
    assert schedule.num_parts == 5
    forward, out = world.check(attention, world.all_rows)
    assert torch.equal(forward(1, *world.inputs(world.all_rows)), out)


@settings(max_examples=4)
@given(st.sampled_from([(1, 2), (4, 2), (3, 3)]), st.lists(FEW, min_size=1, max_size=2), st.integers(0, 3), st.data())
def test_with_a_width_a_row_is_equal_to_the_bit_whatever_is_beside_it(
    device: str, kind: tuple[int, int], of: list[Shape], more: int, data: st.DataObject
) -> None:
    size, group = kind
    world = World(Kind(size, (2 * group, 2), 8, torch.bfloat16, device), of, more)
    rows = world.all_rows
    width = max(row.index for row in rows) + 1 + more
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_schedule, "FIXED_SPLIT", 16)
        attention = triton(world)
        _, together = world.check(attention, rows, width)
        for number in data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=2)):
            alone = attention.prepare([rows[number]], width)(1, *world.inputs([rows[number]]))
            assert torch.equal(alone[0], together[number])
