"""Stage 2, by the clock. The demo at published sizes: steps beside their floor, then modes beside each other.

The speed is of those sizes, the acceptance the demo's, which was trained with one block size. `static` in blocks of one
token is the autoregressive line: the same engine, one token a forward. The paper's rows are K = 3 and `direct`; the
speed-ups beside them are the paper's, in blocks of 16 (arXiv 2605.18817).
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from msgspec import structs

from benchmarks.gpu.rows import GPU_SHAPES, Extent, Rows
from benchmarks.inflated import inflate
from benchmarks.machine import measure_rates
from benchmarks.paper.published import BLOCK_SIZE, paper_cell
from benchmarks.steps import Platform, step_times
from benchmarks.throughput import PlanAtLoad, Rounds, Workload, compare_at_loads, encoded
from service.decode.mode import DecodingMode
from service.decode.modes import Direct, Remask, Speculative, Static
from service.demo import CHECKPOINT, heldout_problems
from service.engine import Engine, EngineConfig, GenerationRequest
from service.model import Checkpoint, LoadOptions
from service.model.quantization.schemes import QUANT_SCHEMES
from service.text import TextCodec

#: static is the first: the others are compared with it
MODES: tuple[DecodingMode, ...] = (
    Static(),
    Speculative("auto"),
    Speculative(1, 4),
    Speculative(0, 4),
    Speculative(3),
    Direct(1),
    Direct(2),
    Remask(0.5),
)
#: of steps: of the first shape, and of the others
BLOCK_SIZES, OTHER_BLOCK_SIZE = (16, 8, 4, 1), 4
STEP_ROUNDS = 7
#: requests of a round, at least
_FEWEST = 6
#: tokens of KV of each request whose answers are compared
_TOKENS = 512


def measure_speed(rows: Rows, device: torch.device, dtype: torch.dtype, extent: Extent) -> None:
    """A row for each step, for each mode in each block size at each load, and for each comparison of answers.

    The first shape is measured first. What fails is a row, and the rest follows.
    """
    rates = measure_rates(device, dtype)
    rows.write("rates", **asdict(rates))
    options = LoadOptions(dtype, str(device))
    for shape, block_size, form in _forms_of_steps(extent):
        what = f"steps of {shape}, blocks of {block_size}, {form or dtype}"
        of_form = replace(options, block_size=block_size, quantization=form)
        rows.part(what, partial(_steps, rows, shape, of_form, extent, Platform(rates)))
    for shape in extent.shapes:
        autoregressive: dict[int, float] = {}
        for block_size in extent.block_sizes:
            of_size = replace(options, block_size=block_size)
            what = f"modes of {shape}, blocks of {block_size}"
            rows.part(what, partial(_modes, rows, shape, of_size, extent, autoregressive))
        rows.part(f"answers of {shape}", partial(_answers, rows, shape, options, extent))
        rows.part(f"async scheduling of {shape}", partial(_async_scheduling, rows, shape, options, extent))
        if extent.torch_profiler_dir:
            rows.part(f"traces of {shape}", partial(_trace, rows, shape, options, extent))


def _forms_of_steps(extent: Extent) -> Iterator[tuple[str, int, str | None]]:
    first, *further = extent.shapes
    yield from ((first, block_size, None) for block_size in BLOCK_SIZES)
    yield from ((first, BLOCK_SIZES[0], form) for form in QUANT_SCHEMES)
    yield from ((shape, OTHER_BLOCK_SIZE, None) for shape in further)


def _steps(rows: Rows, shape: str, options: LoadOptions, extent: Extent, platform: Platform) -> None:
    checkpoint = inflate(extent.model, GPU_SHAPES[shape], options)
    form = {"block_size": options.block_size, "quantization": options.quantization}
    for step in step_times(checkpoint, extent.rows, extent.context, STEP_ROUNDS, platform):
        rows.write("step", shape=shape, **form, **asdict(step), step=step.step, ratio=step.ratio)


def _modes(rows: Rows, shape: str, options: LoadOptions, extent: Extent, autoregressive: dict[int, float]) -> None:
    """Blocks of one token write their rates into `autoregressive`, larger blocks stand beside them."""
    checkpoint = inflate(extent.model, GPU_SHAPES[shape], options)
    modes = MODES if checkpoint.config.block_size > 1 else MODES[:1]
    loads = _compared(checkpoint, extent.concurrency, extent, modes)
    for concurrency in extent.concurrency:
        if rows.over(f"{shape}, blocks of {options.block_size}, {concurrency} together"):
            return
        plans = next(loads)
        for plan in plans:
            row = _row(plan, plans[0])
            if len(modes) == 1:
                autoregressive[concurrency] = row["tokens_per_s"]
            elif concurrency in autoregressive:
                row["times_autoregressive"] = row["tokens_per_s"] / autoregressive[concurrency]
            row["paper_times_static"] = paper_cell(shape, BLOCK_SIZE, plan.mode).speedup
            rows.write("mode", shape=shape, block_size=options.block_size, **row)


def _compared(
    checkpoint: Checkpoint,
    concurrency: Sequence[int],
    extent: Extent,
    modes: Sequence[DecodingMode],
    config: EngineConfig | None = None,
) -> Iterator[list[PlanAtLoad]]:
    workload = Workload(prompts(), fewest=_FEWEST, new_tokens=extent.new_tokens)
    return compare_at_loads(checkpoint, workload, modes, Rounds(concurrency, extent.rounds), config)


def prompts() -> list[tuple[int, ...]]:
    """The demo's held-out problems in token ids."""
    return encoded(TextCodec.load(CHECKPOINT), heldout_problems(256, seed=1))


def named(mode: DecodingMode) -> dict[str, Any]:
    """A mode's name and its knobs, as fields of a row."""
    knobs = {name: value for name, value in structs.asdict(mode).items() if value is not None}
    return {"mode": mode.name, "knobs": knobs}


def _row(plan: PlanAtLoad, static: PlanAtLoad) -> dict[str, Any]:
    tokens = sum(sample.tokens for sample in plan.samples)
    _, faster = plan.times_faster(static)
    return {
        "concurrency": plan.concurrency,
        **named(plan.mode),
        "tokens_per_forward": plan.tokens_per_forward,
        "tokens_per_s": tokens / sum(sample.wall_s for sample in plan.samples),
        "times_static": faster,
        "every_times_static": plan.ratios(static),
    }


def _answers(rows: Rows, shape: str, options: LoadOptions, extent: Extent) -> None:
    """Answers equal to those of `static`: in the opposite order, with three MRP steps, and with `auto`.

    `deterministic` promises them. Without it the rows inform.
    """
    checkpoint, drawn = inflate(extent.model, GPU_SHAPES[shape], options), prompts()
    stops, together = frozenset(checkpoint.config.eos_token_ids), extent.together
    requests_of = {
        mode: [
            request
            for temperature, numbers in ((0.0, range(together)), (0.7, range(together, 2 * together)))
            for request in Workload(drawn, temperature, new_tokens=extent.new_tokens).requests(mode, numbers, stops)
        ]
        for mode in (Static(), Speculative(3), Speculative("auto"))
    }
    for deterministic in (False, True):
        config = EngineConfig(
            together, kv_cache_tokens=together * _TOKENS, prefix_cache=False, deterministic=deterministic
        )
        engine = Engine(checkpoint, config)
        expected = answered(engine, requests_of[Static()])
        for mode, requests in requests_of.items():  # static again, too
            if rows.over(f"answers of {shape}, {mode.name}"):
                return
            answers = answered(engine, requests[::-1])
            right = sum(answers[number] == tokens for number, tokens in expected.items())
            rows.failed |= deterministic and right < len(requests)
            rows.write("answers", shape=shape, **named(mode), right=right, of=len(requests), promised=deterministic)


def answered(engine: Engine, requests: list[GenerationRequest]) -> dict[str, tuple[int, ...]]:
    """The tokens of each request by its name. All requests are there at once."""
    return {completion.request_id: completion.token_ids for completion in engine.generate(requests)}


def _async_scheduling(rows: Rows, shape: str, options: LoadOptions, extent: Extent) -> None:
    """With steps that begin ahead of results and without, at the lowest and the highest load."""
    checkpoint = inflate(extent.model, GPU_SHAPES[shape], options)
    for ahead in (True, False):
        config = EngineConfig(async_scheduling=ahead)
        for plans in _compared(
            checkpoint, sorted({min(extent.concurrency), max(extent.concurrency)}), extent, MODES[:2], config
        ):
            for plan in plans:
                rows.write("async scheduling", shape=shape, ahead=ahead, **_row(plan, plans[0]))


def _trace(rows: Rows, shape: str, options: LoadOptions, extent: Extent) -> None:
    """A trace for `static` and one for three MRP steps, at the highest load. No times: the profiler slows the steps."""
    checkpoint = inflate(extent.model, GPU_SHAPES[shape], options)
    config = EngineConfig(torch_profiler_dir=extent.torch_profiler_dir)
    for mode in (Static(), Speculative(3)):
        list(_compared(checkpoint, [max(extent.concurrency)], extent, [mode], config))
    rows.write("traces", shape=shape, folder=str(extent.torch_profiler_dir))
