"""`mrp-serve`: the program and its commands.

Parses arguments and turns this package's errors into one line on stderr; every command lives in its own
file and imports what it needs only when it runs, so that `--help` is instant.
"""

from __future__ import annotations

import sys

import typer

from service.cli import (
    bench,
    calibrate,
    check,
    determinism,
    evaluate,
    forward,
    generate,
    key,
    loads,
    quality,
    serve,
    train,
)
from service.errors import MrpServeError

app = typer.Typer(
    name="mrp-serve",
    help="Serves block-diffusion language models (SDAR) with Multi-token Residual Prediction (MRP).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.command)
app.command("generate")(generate.command)
app.command("eval")(evaluate.command)
app.command("calibrate")(calibrate.command)
app.command("quality")(quality.command)
app.command("bench")(bench.command)
app.command("forward")(forward.command)
app.command("loads")(loads.command)
app.command("determinism")(determinism.command)
app.command("check")(check.command)
app.command("key")(key.command)
app.command("train-mrp")(train.command)


def main() -> None:
    """The console script's entry."""
    try:
        app()
    except MrpServeError as error:
        print(f"mrp-serve: {error.message}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
