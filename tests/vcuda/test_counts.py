"""Waits, launches, copies and allocations of a step in each mode. They may only fall (README.md, counts.json)."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Sequential, Speculative, Static
from service.engine import Engine, EngineDeps, GenerationRequest, SamplingParams
from service.engine.drafting.planner import PLAIN, REFINED
from service.engine.request import LogprobsRequest
from tests.engine.helpers import FREE_ROWS
from tests.plans import use_plan
from tests.thinned import fast_only
from tests.tiny import GOLDEN_NAMES
from tests.vcuda.decoding import ALL_ON, on_device, steps, waits
from tests.vcuda.device import Counts

TABLE = Path(__file__).parent / "counts.json"
#: the new tokens of a request
TOKENS = 12

MODES: dict[str, tuple[DecodingMode, SamplingParams, LogprobsRequest | None]] = {
    "static": (Static(), SamplingParams(), None),
    "dynamic": (Dynamic(0.9), SamplingParams(), None),
    "sequential": (Sequential(entropy_bound=0.1), SamplingParams(), None),
    "direct": (Direct(2), SamplingParams(), None),
    "direct with a threshold": (Direct(2, 0.02), SamplingParams(), None),
    "remask": (Remask(0.5), SamplingParams(), None),
    "speculative": (Speculative(2), SamplingParams(), None),
    "speculative, 4 states": (Speculative(2, 4), SamplingParams(), None),
    "speculative, drafts of the backbone": (Speculative(0, 4), SamplingParams(), None),
    "speculative, auto with MRP": (Speculative("auto", prompt_lookup_num_tokens=0), SamplingParams(), None),
    "speculative, auto without drafts": (Speculative("auto"), SamplingParams(), None),
    "static, sampled": (Static(), SamplingParams(0.7, seed=3), None),
    "static, top-k and top-p": (Static(), SamplingParams(0.7, 0.9, 20, seed=3), None),
    "static, log-probabilities": (Static(), SamplingParams(), LogprobsRequest(4, ())),
}

#: modes that are also measured with other numbers of requests than 8
LOADED = ("static", "direct", "speculative, auto without drafts", "dynamic")
#: the name of a line of the table -> its mode, and the number of requests
LINES = {mode: (mode, 8) for mode in MODES} | {
    f"{mode}, {count} request{'s' * (count > 1)}": (mode, count) for mode in LOADED for count in (1, 32, 128)
}

COLUMNS: dict[str, Callable[[Counts], int]] = {
    "event waits": lambda count: count.event_waits,
    "idle waits": lambda count: count.later_replays.count(0),
    "implicit waits": lambda count: count.waits.total(),
    "replays": lambda count: count.replays,
    "nodes of graphs": lambda count: count.nodes,
    "launches": lambda count: count.num_launches,
    "sends": lambda count: count.sends,
    "sent bytes": lambda count: count.sent_bytes,
    "fetches": lambda count: count.fetches,
    "fetched bytes": lambda count: count.fetched_bytes,
    "allocations": lambda count: count.allocations,
    "pinned allocations": lambda count: count.pinned,
}


@pytest.mark.parametrize("line", fast_only(lambda line: LINES[line][1] < 128 or "static" in line, LINES))
def test_no_count_of_a_step_rises(device, line, request, monkeypatch):
    use_plan(monkeypatch, PLAIN if "without drafts" in line else REFINED)
    table: dict[str, Any] = json.loads(TABLE.read_text()) if TABLE.is_file() else {}
    version = torch.__version__.split("+")[0]
    if table.get("torch", version) != version:
        pytest.skip(f"the counts are those of torch {table['torch']}, here is {version}")
    measured, stored = per_step(device, *LINES[line]), table.get(line, {})
    higher = {name: (stored[name], value) for name, value in measured.items() if value > stored.get(name, value)}
    assert not higher, f"stored, measured: {higher}"
    if measured == stored:
        return
    if not request.config.getoption("--write-counts"):
        pytest.fail(f"not stored yet: {measured}; stored: {stored}. Run this test with --write-counts")
    lines = (table | {line: measured}).items()
    rows = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in lines if name != "torch"]
    TABLE.write_text("{\n" + ",\n".join([f'"torch": "{version}"', *rows]) + "\n}\n")


def per_step(device, mode, num_requests):
    """The mean counts of a step, warm: the third time that these requests are decoded."""
    mode_params, sampling, logprobs = MODES[mode]
    max_rows = max(ALL_ON.max_rows, 2 * num_requests)  # a finished block and the next one of each request
    engine = Engine(
        on_device(GOLDEN_NAMES[0]),
        replace(ALL_ON, draft_candidates=8, prefix_cache=False, max_rows=max_rows, max_running=num_requests),
        deps=EngineDeps(costs=FREE_ROWS),
    )
    submitted = [
        GenerationRequest(
            str(number),
            tuple((7 * number + position) % 40 + 40 for position in range(12)),
            mode_params,
            structs.replace(sampling, seed=sampling.seed + number),
            TOKENS,
            logprobs=logprobs,
        )
        for number in range(num_requests)
    ]
    if mode == "speculative, auto with MRP":
        engine.prepare()  # its shapes change from time to time
    for _ in range(2):
        steps(engine, device, submitted)
    counts = steps(engine, device, submitted)
    assert [wait for count in counts for wait in waits(count)] == []
    assert sum(count.captures for count in counts) == 0
    return {name: round(sum(value(count) for count in counts) / len(counts), 2) for name, value in COLUMNS.items()}
