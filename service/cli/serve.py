"""`mrp-serve serve`: the service on one machine. It starts Ray and Serve, waits, and shuts both down.

Every setting of `service.settings` is a flag. Clusters do not need this program: they deploy `service.app:build`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from service.cli import cluster, preflight
from service.cli.draining import drain
from service.cli.log_pipe import LogPipe
from service.settings import Settings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def command(**given: Any) -> None:
    """Serves a checkpoint over HTTP until it is interrupted."""
    run(Settings(**{name: value for name, value in given.items() if value is not None}))


def run(settings: Settings) -> None:
    """Starts the service and prints its address. Returns after SIGINT or SIGTERM, when the service has drained."""
    started = time.monotonic()
    settings = settings.on_one_machine()
    preflight.check(settings)
    _say(f"loading {settings.model_name} …")
    with LogPipe() as pipe:
        shown = settings if settings.log_file else settings.model_copy(update={"log_file": pipe.path})
        try:
            _listen_to_signals()
            proxy = cluster.begin(shown)
            _listen_to_signals()
            cluster.deploy(shown, say=_say, proxy=proxy)
            _say(_ready(settings, time.monotonic() - started))
            threading.Event().wait()
        except KeyboardInterrupt:
            _drain(settings)
        finally:
            _ignore_signals()
            cluster.stop()


def _drain(settings: Settings) -> None:
    _say(f"shutting down: requests in flight have {settings.drain_timeout_s:g} s; a second signal cuts them …")
    _listen_to_signals()
    try:
        if not asyncio.run(drain(settings.drain_timeout_s)):
            _say(f"requests were cut after {settings.drain_timeout_s:g} s")
    except KeyboardInterrupt:
        _say("requests in flight are cut")


def _say(text: str) -> None:
    print(f"mrp-serve: {text}", file=sys.stderr, flush=True)


def _listen_to_signals() -> None:
    """Makes the next signal raise KeyboardInterrupt. Ray has installed its own handlers."""
    for number in _SIGNALS:
        signal.signal(number, _interrupt)


def _ignore_signals() -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(*_: object) -> None:
    _ignore_signals()
    raise KeyboardInterrupt


def _ready(settings: Settings, seconds: float) -> str:
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104 - compared only
    url = f"http://{host}:{settings.port}"
    body = '{"messages": [{"role": "user", "content": "Tom has 5 apples, gets 3, loses 2."}]}'
    key = "-H 'Authorization: Bearer KEY' " if settings.api_keys or settings.api_keys_file else ""
    return (
        f"{settings.model_name} is served on {url} after {seconds:.0f} s; fields and examples: {url}/docs\n"
        f"try: curl -s {url}/generate -H 'Content-Type: application/json' {key}-d '{body}'" + _warning(settings)
    )


def _warning(settings: Settings) -> str:
    """A line for a service that other machines may reach without a key. Empty for others."""
    local = settings.host in {"localhost", "::1"} or settings.host.startswith("127.")
    if local or settings.api_keys or settings.api_keys_file:
        return ""
    return f"\nwarning: no API keys are set, so whoever reaches {settings.host}:{settings.port} may use the service"


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    """A setting as an option. The default None means not given, so that environment and file still count."""
    default = "" if field.default in (None, ()) else f" (default: {_short(field.default)})"
    kind, flag = _plain_type(field.annotation), name.replace("_", "-")
    names = f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"
    option = typer.Option(None, names, help=f"{field.description}{default}", show_default=False)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)


def _plain_type(annotation: Any) -> Any:
    """The type into which a flag's text is converted: the first plain type of the annotation, else text."""
    if annotation in (bool, int, float, str, Path):
        return annotation
    plain = [_plain_type(part) for part in get_args(annotation) if part is not type(None)]
    return plain[0] if plain and plain[0] in (bool, int, float, Path) else str


def _short(value: object) -> str:
    return "the shipped demo" if isinstance(value, str) and os.sep in value else str(value)


command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_option(name, field) for name, field in Settings.model_fields.items()]
)
