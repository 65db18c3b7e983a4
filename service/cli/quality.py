"""`mrp-serve quality`: a checkpoint's calibration as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.output import results, table
from service.errors import CheckpointError

if TYPE_CHECKING:
    from service.quality.schema import PlanResult, QualityFile, Speed


def command(
    model: Annotated[str | None, typer.Argument(help="A folder, a hub name or a file. Default: the demo.")] = None,
) -> None:
    """Shows a checkpoint's plans for lossless, balanced and fast, and every plan that was measured."""
    from service.demo import CHECKPOINT
    from service.quality.presets import HOW_TO_MAKE
    from service.quality.schema import FILE_NAME, read_quality

    path = Path(model or CHECKPOINT)
    if not path.is_file():
        from service.model import resolve

        folder = resolve(path)
        path = folder / FILE_NAME
        if not path.is_file():
            raise CheckpointError(f"{folder} has no {FILE_NAME}; {HOW_TO_MAKE}")
    show(read_quality(path))


def show(file: QualityFile) -> None:
    """Prints the table, the presets and the warnings."""
    from service.quality.load_bands import in_words

    console, most = results(), file.measured.concurrency[-1]
    shown = table("plan", "accuracy", "from static", "identical", "tok/forward", *_loads(file), "frontier", plan="plan")
    for row in sorted(file.rows, key=lambda row: -row.speed_at(most).tokens_per_second):
        shown.add_row(*_cells(row, file))
    console.print(shown)
    for name, bands in file.presets.items():
        console.print(f"{name}: {in_words(bands)}")
    console.print(_explained(file), style="dim")
    for warning in file.warnings:
        console.print(f"warning: {warning}", style="yellow")


def _explained(file: QualityFile) -> str:
    clock = "CPU time" if file.measured.clock == "cpu" else "time"
    return f"ms/token: {clock}, and times static's speed; frontier: at how many requests. {file.measured.how}"


def _loads(file: QualityFile) -> list[str]:
    return [f"ms/token at {together}" for together in file.measured.concurrency]


def _cells(row: PlanResult, file: QualityFile) -> list[str]:
    speeds = [row.speed_at(together) for together in file.measured.concurrency]
    away = 100 * max(row.difference_high - row.difference, row.difference - row.difference_low)
    accuracy = f"{row.accuracy:.3f} [{row.accuracy_low:.3f}, {row.accuracy_high:.3f}]"
    difference = "as static" if row.lossless else f"{100 * row.difference:+.1f} ±{away:.1f}"
    counts = [f"{row.identical}/{row.prompts}", f"{row.tokens_per_forward:.2f}"]
    best_at = ", ".join(str(speed.concurrency) for speed in speeds if speed.on_frontier)
    return [row.plan.name, accuracy, difference, *counts, *(_speed(speed) for speed in speeds), best_at]


def _speed(speed: Speed) -> str:
    away = max(speed.speedup_high - speed.speedup, speed.speedup - speed.speedup_low)
    return f"{1e3 / speed.tokens_per_second:.3f}  x{speed.speedup:.2f} ±{away:.2f}"
