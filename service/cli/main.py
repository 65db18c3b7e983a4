"""`mrp-serve`: the program and its commands, each of which imports its dependencies only when it runs."""

import hashlib
import os
import secrets
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from service.cli import batch, calibrate, check, generate, serve
from service.cli.output import WIDE, is_on_a_terminal
from service.errors import MrpServeError
from training import cli as train

app = typer.Typer(
    name="mrp-serve",
    help="Serves block-diffusion language models (SDAR) with Multi-token Residual Prediction (MRP).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(is_set: bool) -> None:
    if is_set:
        print(f"mrp-serve {version('mrp-serve')}")
        raise typer.Exit


@app.callback()
def _program(
    _version: Annotated[
        bool, typer.Option("--version", "-V", help="Prints the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command("serve")(serve.command)
app.command("generate")(generate.command)
app.command("batch")(batch.command)
app.command("check")(check.command)


@app.command("key")
def make_key(
    name: Annotated[str, typer.Argument(help="Name of the key, which names its owner and its limits.")] = "me",
) -> None:
    """Makes an API key. Prints the key, and its line for api_keys_file."""
    from service.admission.keys import check_name

    check_name(name)
    key = f"mrp-{secrets.token_urlsafe(32)}"  # shown once; the service gets only its hash
    digest = hashlib.sha256(key.encode()).hexdigest()
    # Each line is one write, so that two streams of one terminal do not mix where Python buffers nothing.
    print(f"{key}\n", end="")
    print("mrp-serve: the key is not shown again; this is its line in api_keys_file:\n", end="", file=sys.stderr)
    print(f"- {{name: {name}, sha256: {digest}}}\n", end="")


app.command("calibrate")(calibrate.calibrate)
app.command("frontier")(calibrate.frontier)
app.command("quality")(calibrate.quality)
app.command("train-mrp")(train.command)


def main() -> None:
    """Runs `mrp-serve` by the arguments of the process."""
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
