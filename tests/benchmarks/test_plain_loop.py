"""The yardstick decodes what the engine decodes: transformers' Qwen3 against our own layers and cache."""

import json
from pathlib import Path

import pytest

from benchmarks.plain_loop import PlainLoop, plain_loop_of
from benchmarks.throughput import RandomWorkload, Rounds, compare_with_plain_loop
from service.decode.modes import Static
from service.engine import Engine
from service.model import load_checkpoint
from tests.tiny import LLADA2_NAME

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("sdar-*"))


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_the_plain_loop_gives_the_golden_tokens(folder):
    plain = PlainLoop(load_checkpoint(folder))
    cases = [
        case
        for case in json.loads((folder / "expected.json").read_text())
        if case["mode"] == "static" and case.get("tokens_per_step", 1) == 1
    ]
    assert cases
    for case in cases:
        assert plain.generate(case["prompt_token_ids"], case["max_new_tokens"], frozenset({510})) == case["token_ids"]


def test_without_transformers_network_the_engine_is_measured_alone():
    checkpoint = load_checkpoint(GOLDEN[0].parent / LLADA2_NAME)
    assert plain_loop_of(checkpoint) is None
    workload = RandomWorkload(Static(8), prompt_tokens=(3, 9), new_tokens=9)
    [row] = compare_with_plain_loop(Engine(checkpoint), None, workload, Rounds([1], 1))
    assert row.engine > 0
    assert (row.plain, row.ratio) == (None, None)
