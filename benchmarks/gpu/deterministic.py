"""Stage 4: the price of `deterministic`. A round of each mode takes turns with it and without it.

By the rates of 2026-11-27 an H100 needs about five minutes for all shapes with `--rounds 5`. That is an estimate.
"""

import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.gpu.rows import GPU_SHAPES, Extent, Rows
from benchmarks.gpu.speed import answered, named, prompts
from benchmarks.inflated import inflate
from benchmarks.throughput import Workload
from service.decode.mode import DecodingMode
from service.decode.modes import Speculative, Static
from service.engine import Engine, EngineConfig
from service.model import LoadOptions

#: static is the first: the answers of the others are compared with its answers
MODES: tuple[DecodingMode, ...] = (Static(), Speculative("auto"), Speculative(3))
#: tokens of KV of each request
_TOKENS = 512


def measure_deterministic(rows: Rows, device: torch.device, dtype: torch.dtype, extent: Extent) -> None:
    """For each shape, load and mode, a row: seconds of a round without `deterministic` and with it, and their ratio.

    A round is one request for each that runs at once. `same` counts answers that equal those of `static`.
    `deterministic` promises them all.
    """
    for shape in extent.shapes:
        options = LoadOptions(dtype, str(device))
        rows.part(f"deterministic with {shape}", partial(_measure, rows, shape, options, extent))


def _measure(rows: Rows, shape: str, options: LoadOptions, extent: Extent) -> None:
    checkpoint, most = inflate(extent.model, GPU_SHAPES[shape], options), max(extent.concurrency)
    engines = {
        on: Engine(checkpoint, EngineConfig(most, kv_cache_tokens=most * _TOKENS, prefix_cache=False, deterministic=on))
        for on in (False, True)
    }
    workload = Workload(prompts(), new_tokens=extent.new_tokens)
    for count in extent.concurrency:
        if rows.over(f"deterministic with {shape}, {count} together"):
            return
        for row in _compared(engines, workload, count, extent.rounds):
            rows.failed |= row["same_deterministic"] < row["of"]
            rows.write("deterministic", shape=shape, concurrency=count, **row)


def _compared(engines: Mapping[bool, Engine], workload: Workload, count: int, rounds: int) -> Iterator[dict[str, Any]]:
    """One round more warms up."""
    stops, turns = frozenset(engines[True].model.eos_token_ids), deque(product(engines, MODES))
    seconds, same = {turn: list[float]() for turn in turns}, dict.fromkeys(turns, 0)
    for number in range(rounds + 1):
        answers = {}
        for on, mode in turns:
            requests = workload.requests(mode, range(number * count, (number + 1) * count), stops)
            began = time.perf_counter()
            answers[on, mode] = answered(engines[on], requests)
            seconds[on, mode].append(time.perf_counter() - began)
        for on, mode in turns:
            same[on, mode] += sum(answers[on, MODES[0]][key] == tokens for key, tokens in answers[on, mode].items())
        turns.rotate(1)  # nobody always follows the same one
    for mode in MODES:
        without, within = seconds[False, mode][1:], seconds[True, mode][1:]
        ratios = [slow / fast for fast, slow in zip(without, within, strict=True)]
        yield {
            **named(mode),
            "seconds": statistics.median(without),
            "seconds_deterministic": statistics.median(within),
            "ratio": statistics.median(ratios),
            "every_ratio": ratios,
            "same": same[False, mode],
            "same_deterministic": same[True, mode],
            "of": (rounds + 1) * count,
        }
