"""`mrp-serve key [NAME]`: makes an API key. The key is shown once; the service gets only its hash."""

from __future__ import annotations

import hashlib
import secrets
import sys
from typing import Annotated

import typer


def command(
    name: Annotated[str, typer.Argument(help="Name of the key, which names its owner and its limits.")] = "me",
) -> None:
    """Makes an API key. Prints the key, and its line for api_keys_file."""
    from service.admission.keys import check_name

    check_name(name)
    key = f"mrp-{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    # Each line is one write, so that two streams of one terminal do not mix where Python buffers nothing.
    print(f"{key}\n", end="")
    print("mrp-serve: the key is not shown again; this is its line in api_keys_file:\n", end="", file=sys.stderr)
    print(f"- {{name: {name}, sha256: {digest}}}\n", end="")
