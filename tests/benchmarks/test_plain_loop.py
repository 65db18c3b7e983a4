"""The yardstick decodes what the engine decodes: transformers' networks against our own layers and cache."""

import json
from pathlib import Path

import pytest

from service.model import load_checkpoint

GOLDEN = sorted(path for kind in ("sdar-*", "stable-*") for path in (Path(__file__).parents[1] / "golden").glob(kind))


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_the_plain_loop_gives_the_golden_tokens(folder):
    from benchmarks.plain_loop import PlainLoop  # transformers' networks take seconds

    plain = PlainLoop(load_checkpoint(folder))
    cases = [
        case
        for case in json.loads((folder / "expected.json").read_text())
        if case["mode"] == "static" and case.get("tokens_per_step", 1) == 1
    ]
    assert cases
    for case in cases:
        assert plain.generate(case["prompt_token_ids"], case["max_new_tokens"], frozenset({510})) == case["token_ids"]
