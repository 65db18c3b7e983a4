"""`python -m benchmarks.sizes`: every mode against `static` at published sizes, by the clock, cell after cell.

A cell is a shape, a form of the weights, a block size and a number of concurrent requests. The checkpoint is inflated
to the shape, so its tokens per forward stay. The plans of a cell take turns. A finished cell is a line of the file of
rows, and the next run goes on with the next cell.

Blocks of another size than the checkpoint's are new to its weights. Their tokens per forward may then be lower than a
checkpoint's that was trained with such blocks.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks.inflated import inflate
from benchmarks.machine import machine_name
from benchmarks.options import heldout, run
from benchmarks.shapes import shape_named
from benchmarks.throughput import PlanAtLoad, Rounds, Workload, compare_at_loads, parts
from service.cli.options import CheckpointOptions, DeviceOption, ModelOption, use_threads
from service.cli.output import Counter, results, table
from service.decode.mode import DecodingMode
from service.decode.modes import Speculative, Static
from service.decode.registry import leaves_drafts_open
from service.errors import SettingsError
from service.model import Checkpoint
from service.model.files import display_name
from service.quality.calibration.plans import parse_plan
from service.quality.calibration.prompts import read_prompts
from service.quality.schema import Plan
from service.text import TextCodec

_PLANS = [
    "speculative mrp_steps=auto",
    "speculative mrp_steps=0 max_drafts=1",
    "speculative mrp_steps=0 max_drafts=3",
    "speculative mrp_steps=1",
    "speculative mrp_steps=2",
    "speculative mrp_steps=1 max_drafts=2",
    "speculative mrp_steps=1 max_drafts=4",
    "dynamic threshold=0.9",
    "sequential entropy_bound=0.1",
    "entropy entropy_bound=0.1",
    "direct mrp_steps=2",
    "remask threshold=0.5",
]
#: forms of weights: dtype and quantization
_WEIGHTS: Mapping[str, tuple[str, str | None]] = {
    "float32": ("float32", None), "bfloat16": ("bfloat16", None), "int8": ("bfloat16", "int8"),
    "w8a8": ("bfloat16", "w8a8"), "fp8": ("bfloat16", "fp8"),
}  # fmt: skip

_SeveralNumbers = Annotated[list[int], typer.Option(min=1, help="May be given again.")]
_SeveralNames = Annotated[list[str], typer.Option(help="May be given again.")]
_WeightsOption = Annotated[list[str], typer.Option(help=f"{', '.join(_WEIGHTS)}; may be given again.")]


@dataclass(frozen=True, slots=True)
class Cell:
    """A place of the table. `weights`: the form of the weights."""

    shape: str
    weights: str
    block_size: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Run:
    """What all cells of a file share. `plans`: `static` first."""

    model: str | Path
    device: str
    prompts: Sequence[str]
    plans: Sequence[DecodingMode]
    rounds: int
    requests: int
    new_tokens: int
    threads: int

    @property
    def circumstances(self) -> dict[str, Any]:
        """The values that a row has beside its cell."""
        return {
            "model": display_name(Path(self.model)),
            "prompts": len(self.prompts),
            "plans": [Plan.from_mode(mode).name for mode in self.plans],
            "rounds": self.rounds,
            "requests": self.requests,
            "new_tokens": self.new_tokens,
            "threads": self.threads,
        }

    def inflated(self, shape: str, weights: str) -> Checkpoint:
        """The checkpoint at a published size."""
        return inflate(self.model, shape_named(shape), CheckpointOptions().on(self.device, *_WEIGHTS[weights]))


def command(
    output: Annotated[Path, typer.Option(help="File of rows, a line of JSON for each cell; a run goes on with it.")],
    model: ModelOption = None,
    device: DeviceOption = "cpu",
    shape: _SeveralNames = ["sdar-1.7b", "sdar-4b"],  # noqa: B006
    weights: _WeightsOption = ["bfloat16", "int8"],  # noqa: B006
    block_size: _SeveralNumbers = [4, 8, 16],  # noqa: B006
    concurrency: _SeveralNumbers = [1, 2, 4, 8],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; one more warms up.")] = 7,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a round, at least; two for each at once.")] = 2,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, at most.")] = 32,
    plan: Annotated[list[str], typer.Option(help="Compared with static; may be given again.")] = _PLANS,
    prompts: Annotated[Path | None, typer.Option(help="Prompts as JSON lines; default: the demo's problems.")] = None,
    problems: Annotated[int, typer.Option(min=1, help="The number of prompts from which rounds draw.")] = 128,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads for torch.")] = 2,
) -> None:
    """Measures every mode against static at published sizes. It takes hours, and goes on where it was stopped."""
    if unknown := [form for form in weights if form not in _WEIGHTS]:
        raise SettingsError(f"weights is {unknown[0]!r}, allowed are {', '.join(_WEIGHTS)}", param="weights")
    for shape_name in shape:
        shape_named(shape_name)
    lines = [str(line["prompt"]) for line in read_prompts(prompts, problems).lines] if prompts else []
    texts = lines or [problem.prompt for problem in heldout(problems, seed=1)]
    plans = [Static(), *(parse_plan(text) for text in plan)]
    use_threads(threads)
    name = CheckpointOptions(model).name
    shared = Run(name, device, texts, plans, rounds, requests, new_tokens, threads)
    cells = [Cell(*key) for key in _product(shape, weights, block_size, concurrency)]
    rows = _read(output, shared)
    missing = [cell for cell in cells if not any(_cell(row) == cell for row in rows)]
    total = len(missing) * parts(plans, Rounds([1], rounds))
    with Counter(max(1, total)) as counter:
        for row in measured(shared, missing, counter):
            rows.append(row)
            _write(output, rows)
    for cell in cells:
        results().print(_table(next(row for row in rows if _cell(row) == cell)))


def _product(
    shapes: Sequence[str], weights: Sequence[str], sizes: Sequence[int], loads: Sequence[int]
) -> Iterator[tuple[str, str, int, int]]:
    return ((shape, form, size, load) for shape in shapes for form in weights for size in sizes for load in loads)


def _read(output: Path, shared: Run) -> list[dict[str, Any]]:
    """The rows of the file. SettingsError if they were measured otherwise."""
    if not output.is_file():
        return []
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        for key, value in shared.circumstances.items():
            if row[key] != value:
                raise SettingsError(f"output has cells with {key} {row[key]}, not {value}", param="output")
    return rows


def _write(output: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the file, so that a run that is killed leaves whole lines."""
    new = output.with_name(f"{output.name}.new")
    new.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    new.replace(output)


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(row["shape"], row["weights"], row["block_size"], row["concurrency"])


def measured(shared: Run, cells: Sequence[Cell], counter: Counter) -> Iterator[dict[str, Any]]:
    """A row for each cell. Cells of one checkpoint must follow each other: it is inflated once."""
    for (shape, weights), of_checkpoint in groupby(cells, lambda cell: (cell.shape, cell.weights)):
        checkpoint = shared.inflated(shape, weights)
        codec = TextCodec.load(checkpoint.path)
        encoded = [tuple(codec.encode_message(prompt)) for prompt in shared.prompts]
        workload = Workload(encoded, fewest=shared.requests, new_tokens=shared.new_tokens)
        for size, of_size in groupby(of_checkpoint, lambda cell: cell.block_size):
            in_blocks = replace(checkpoint, config=replace(checkpoint.config, block_size=size))
            todo, began = list(of_size), time.monotonic()
            loads = Rounds([cell.concurrency for cell in todo], shared.rounds, counter.next)
            at_loads = compare_at_loads(in_blocks, workload, shared.plans, loads)
            for cell, plans in zip(todo, at_loads, strict=True):
                seconds, began = time.monotonic() - began, time.monotonic()
                machine = {"machine": machine_name(checkpoint.device), "seconds": round(seconds, 1)}
                yield asdict(cell) | machine | shared.circumstances | compared(plans)


def compared(plans: Sequence[PlanAtLoad]) -> dict[str, Any]:
    """The results of a cell. `plans`: `static` first. Ratios are of one round: [median, least, largest]."""
    static = plans[0]
    lossless = [plan for plan in plans if _is_lossless(plan.mode)]
    automatic = [plan for plan in lossless if leaves_drafts_open(plan.mode)]
    fixed = [plan for plan in lossless if not leaves_drafts_open(plan.mode)]
    best = max(fixed, key=lambda plan: statistics.median(plan.ratios(static)))
    return {
        "best_fixed": Plan.from_mode(best.mode).name,
        "auto_to_best_fixed": _spread(automatic[0].ratios(best)) if automatic else None,
        "results": [
            {
                "plan": Plan.from_mode(plan.mode).name,
                "tokens_per_forward": round(plan.tokens_per_forward, 3),
                "ms_per_token": round(
                    statistics.median(1e3 * sample.wall_s / sample.tokens for sample in plan.samples), 3
                ),
                "times_static": _spread(plan.ratios(static)),
                "times_static_cpu": round(plan.times_faster(static)[0], 3),
                "samples": [asdict(sample) for sample in plan.samples],
            }
            for plan in plans
        ],
    }


def _is_lossless(mode: DecodingMode) -> bool:
    """Whether the output is `static`'s."""
    drafted = isinstance(mode, Speculative) and not mode.drafts_decide and mode.plain == Static()
    return drafted or mode == Static()


def _spread(ratios: Sequence[float]) -> list[float]:
    return [round(value, 3) for value in (statistics.median(ratios), min(ratios), max(ratios))]


def _table(row: Mapping[str, Any]) -> Table:
    lines = table("plan", "tokens/forward", "ms/token", "times static", "(CPU)", plan="plan")
    requests = f"{row['concurrency']} request{'s' * (row['concurrency'] > 1)}"
    lines.title = f"{row['shape']}, {row['weights']}, blocks of {row['block_size']}, {requests}, {row['seconds']:.0f} s"
    for result in row["results"]:
        numbers = f"{result['tokens_per_forward']:.2f}", f"{result['ms_per_token']:.1f}"
        lines.add_row(result["plan"], *numbers, _words(result["times_static"]), f"{result['times_static_cpu']:.2f}")
    if row["auto_to_best_fixed"]:
        lines.caption = f"auto: {_words(row['auto_to_best_fixed'])} of the best fixed, {row['best_fixed']}"
    return lines


def _words(spread: Sequence[float]) -> str:
    median, least, largest = spread
    return f"{median:.2f} ({least:.2f}–{largest:.2f})"  # noqa: RUF001 (a range)


if __name__ == "__main__":
    run(command)
