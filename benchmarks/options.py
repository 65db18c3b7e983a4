"""What benchmarks share with the program: options, output, loading, and `run`. Only it imports `service.cli`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli import main
from service.cli.options import AttentionOption, ModelOptions, OutputOption, ThreadsOption, use_threads, with_fields
from service.cli.output import Counter, notes, results, table
from service.demo import Problem, heldout_problems
from service.errors import SettingsError
from service.model import Checkpoint

__all__ = [
    "AttentionOption",
    "Counter",
    "ModelOptions",
    "OutputOption",
    "SeveralOption",
    "ShapeOption",
    "ThreadsOption",
    "heldout",
    "load_in_shape",
    "notes",
    "results",
    "run",
    "table",
    "use_threads",
    "with_fields",
    "write_rows",
]

SeveralOption = Annotated[list[int], typer.Option(min=1, help="Concurrent requests; may be given again.")]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        help="Inflates the checkpoint to a published shape (qwen3-0.6b, sdar-1.7b, -4b, -8b): same answers, its cost."
    ),
]


def run(command: Callable[..., None], name: str = "benchmarks") -> None:
    """Runs a benchmark as a program. An error of the service is one line on stderr; the status is then 1."""
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(command)
    main.run(program, name)


def write_rows(output: Path | None, rows: Any) -> None:
    """Writes rows as JSON, where `--out` names a file."""
    if output:
        output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def heldout(count: int, seed: int) -> list[Problem]:
    """`count` of the demo's held-out problems. SettingsError, which names `problems`, if there are fewer."""
    if count > (available := len(heldout_problems())):
        raise SettingsError(f"problems is {count}, allowed are 1 to {available}", param="problems")
    return heldout_problems(count, seed)


def load_in_shape(options: ModelOptions, shape: str | None) -> Checkpoint:
    """Loads the checkpoint; where a shape is named, the checkpoint is inflated to it."""
    from benchmarks.inflated import inflate
    from benchmarks.shapes import shape_named

    return options.load() if shape is None else inflate(options.name, shape_named(shape), options.loading)
