"""`mrp-serve`: the program and its commands.

It parses arguments and turns this package's errors into one line on stderr. Every command has its own file and
imports its dependencies only when it runs, so `--help` is instant.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from service.cli import batch, calibrate, check, generate, key, serve, train
from service.cli.output import WIDE, is_on_a_terminal
from service.errors import MrpServeError

app = typer.Typer(
    name="mrp-serve",
    help="Serves block-diffusion language models (SDAR) with Multi-token Residual Prediction (MRP).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _say_version(is_set: bool) -> None:
    if is_set:
        print(f"mrp-serve {version('mrp-serve')}")
        raise typer.Exit


@app.callback()
def _program(
    _version: Annotated[
        bool, typer.Option("--version", help="Prints the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command("serve")(serve.command)
app.command("generate")(generate.command)
app.command("batch")(batch.command)
app.command("check")(check.command)
app.command("key")(key.command)
app.command("calibrate")(calibrate.calibrate)
app.command("frontier")(calibrate.frontier)
app.command("quality")(calibrate.quality)
app.command("train-mrp")(train.command)


def main() -> None:
    """The entry point of the console script."""
    run(app, "mrp-serve")


def run(program: typer.Typer, name: str) -> None:
    """Runs a program. An error of this package is one line on stderr, begins with `name`, and gives exit status 1."""
    if not is_on_a_terminal():
        os.environ.setdefault("TERMINAL_WIDTH", str(WIDE))  # typer reads it for help and usage errors
    try:
        program()
    except MrpServeError as error:
        print(f"{name}: {error.message}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
