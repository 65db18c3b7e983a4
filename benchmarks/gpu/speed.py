"""Stage 3. The demo at published sizes: plans beside each other at several loads, and steps over their floor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from msgspec import structs

from benchmarks.gpu.rows import Extent, Rows
from benchmarks.inflated import inflate
from benchmarks.machine import measure_rates
from benchmarks.shapes import SHAPES
from benchmarks.steps import Platform, step_times
from benchmarks.throughput import PlanAtLoad, Rounds, Workload, compare_at_loads, encoded
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Dynamic, Remask, Sequential, Speculative, Static
from service.demo import CHECKPOINT, heldout_problems
from service.engine import EngineConfig
from service.model import Checkpoint, LoadOptions
from service.model.quantization.schemes import QUANT_SCHEMES
from service.text import TextCodec

#: static is the first: the others are compared with it
PLANS: tuple[DecodingMode, ...] = (
    Static(),
    Speculative("auto"),
    Speculative(2),
    Speculative(1, 4),
    Speculative(2, 8),
    Speculative(0, 4),
    Dynamic(0.7),
    Sequential(entropy_bound=0.1),
    Remask(0.5),
    Direct(2),
)

#: how engines may work beside their defaults, and the plans for which that is measured
VARIANTS = {
    "overlap on": EngineConfig(overlap="on"),
    "overlap off": EngineConfig(overlap="off"),
    "overlap off, graphs off": EngineConfig(overlap="off", cuda_graphs=False),
}
VARIED: tuple[DecodingMode, ...] = (Static(), Speculative(1, 4))


def measure_speed(rows: Rows, device: torch.device, dtype: torch.dtype, extent: Extent) -> None:
    """Steps of all shapes come first, since they take seconds. Then the plans and the variants of each shape.

    A row for each step, for each plan at each load, and for each variant at the highest load.
    """
    rates = measure_rates(device, dtype)
    rows.write("rates", **asdict(rates))
    options = LoadOptions(dtype, str(device))
    for form in (None, *QUANT_SCHEMES):
        for shape in extent.shapes:
            if rows.over(f"steps of {shape}, {form or dtype}"):
                return
            _steps(rows, shape, replace(options, quantization=form), extent, Platform(rates))
    for shape in extent.shapes:
        if rows.over(shape):
            return
        _plans(rows, shape, inflate(CHECKPOINT, SHAPES[shape], options), extent)


def _steps(rows: Rows, shape: str, options: LoadOptions, extent: Extent, platform: Platform) -> None:
    checkpoint = inflate(CHECKPOINT, SHAPES[shape], options)
    form = {"quantization": options.quantization} if options.quantization else {}
    for step in step_times(checkpoint, extent.rows, extent.context, extent.rounds, platform):
        rows.write("step", shape=shape, **form, **asdict(step), step=step.step, ratio=step.ratio)


def _plans(rows: Rows, shape: str, checkpoint: Checkpoint, extent: Extent) -> None:
    for concurrency in extent.concurrencies:
        if rows.over(f"{shape}, {concurrency} together"):
            return
        for row in plan_rows(checkpoint, concurrency, extent, PLANS):
            rows.write("plan", shape=shape, **row)
    for name, config in VARIANTS.items():
        if rows.over(f"{shape}, {name}"):
            return
        for row in plan_rows(checkpoint, max(extent.concurrencies), extent, VARIED, config):
            rows.write("variant", shape=shape, variant=name, **row)


def plan_rows(
    checkpoint: Checkpoint,
    concurrency: int,
    extent: Extent,
    params: Sequence[DecodingMode],
    config: EngineConfig | None = None,
) -> Iterator[dict[str, Any]]:
    """A row for each plan at a load: its speed, its tokens per forward and its ratio to the first plan."""
    prompts = encoded(TextCodec.load(CHECKPOINT), heldout_problems(256, seed=1))
    workload = Workload(prompts, fewest=2 * concurrency, new_tokens=extent.new_tokens)
    for plans in compare_at_loads(checkpoint, workload, params, Rounds((concurrency,), extent.rounds), config):
        for plan in plans:
            yield _row(plan, plans[0])


def _row(plan: PlanAtLoad, static: PlanAtLoad) -> dict[str, Any]:
    tokens = sum(sample.tokens for sample in plan.samples)
    _, faster = plan.times_faster(static)
    return {
        "concurrency": plan.concurrency,
        "plan": plan.params.mode,
        "knobs": {name: value for name, value in structs.asdict(plan.params).items() if value is not None},
        "tokens_per_forward": plan.tokens_per_forward,
        "tokens_per_s": tokens / sum(sample.wall_s for sample in plan.samples),
        "times_static": faster,
    }
