"""The parts of a client's script: each is called, and their errors are printed as one line of JSON.

The environment has two servers: `DEMO` is the demo, `TOOLS` a checkpoint with random weights and Qwen3's chat template,
which likes to call tools. Both are called `MODEL`.
"""

import asyncio
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

DEMO, TOOLS, MODEL = os.environ["DEMO"], os.environ["TOOLS"], os.environ["MODEL"]
KEY = "none"
STORY = "Tom has 5 apples, gets 3, loses 2."
MESSAGES = [{"role": "user", "content": STORY}]
SCHEMA = {"type": "object", "properties": {"name": {"enum": ["Tom", "Ann"]}}, "required": ["name"]}
#: more tokens than the context of the demo has
LONG = "Tom has 5 apples. " * 600
_PARTS: list[Callable[[], Any]] = []


def part(function: Callable[[], Any]) -> Callable[[], Any]:
    """A part of the script. It fails if it raises an error."""
    _PARTS.append(function)
    return function


def fails(call: Callable[[], Any], *names: str) -> BaseException:
    """The error of a call, or of its cause, whose class has one of these names."""
    try:
        answer = call()
        if inspect.isawaitable(answer):
            answer = asyncio.run(answer)
    except Exception as error:  # noqa: BLE001 - clients have errors of their own
        cause: BaseException | None = error
        while cause is not None and type(cause).__name__ not in names:
            cause = cause.__cause__
        assert cause is not None, f"{type(error).__name__} instead of {' or '.join(names)}: {error}"
        return cause
    raise AssertionError(f"no error, but {answer!r}")


def run(at_end: Callable[[], Any] = lambda: None) -> None:
    """Calls all parts and prints their errors: name -> null, or the error. `at_end` ends other processes."""
    errors: dict[str, str | None] = {}
    for function in _PARTS:
        started = time.monotonic()
        try:
            answer = function()
            if inspect.isawaitable(answer):
                asyncio.run(answer)
            errors[function.__name__] = None
        except BaseException as error:  # noqa: BLE001 - some clients exit
            traceback.print_exc()
            errors[function.__name__] = f"{type(error).__name__}: {error}"[:300]
        print(f"{function.__name__}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    print(json.dumps({"errors": errors}), flush=True)
    at_end()
    os._exit(0)  # some clients leave threads behind
