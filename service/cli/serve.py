"""`mrp-serve serve`: one machine's service. Starts Ray and Serve here, waits, shuts both down.

Every setting of `service.settings` is a flag. Clusters do not need this: they deploy `service.app:build`.
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import typer

from service.cli.log_pipe import LogPipe
from service.errors import SettingsError
from service.settings import Settings

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_OBJECT_STORE_BYTES = 200 * 2**20
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

#: what Ray and Serve read when they are imported
_ENVIRONMENT = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # for load balancers: a port for every replica, 30 s to shut down
    "RAY_USAGE_STATS_ENABLED": "0",
}


def command(**given: Any) -> None:
    """Serves a checkpoint over HTTP until it is interrupted."""
    run(Settings(**{name: value for name, value in given.items() if value is not None}))


def run(settings: Settings) -> None:
    """Starts the service, says where it is, and returns after SIGINT or SIGTERM."""
    started = time.monotonic()
    _check(settings)
    _say(f"loading {settings.model_name} …")
    with LogPipe() as pipe:
        shown = settings if settings.log_file else settings.model_copy(update={"log_file": pipe.path})
        try:
            _start(shown)
            _say(_ready(settings, time.monotonic() - started))
            threading.Event().wait()
        except KeyboardInterrupt:
            _say("shutting down …")
        finally:
            _stop()


def _say(text: str) -> None:
    print(f"mrp-serve: {text}", file=sys.stderr, flush=True)


def _interrupt(*_: object) -> None:
    """The first signal interrupts; further ones do not disturb the way out."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _check(settings: Settings) -> None:
    """What can be known to fail before anything is started."""
    from service.model import parse_config, read_config, resolve

    parse_config(read_config(resolve(settings.model)), block_size=settings.block_size)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            address = f"{settings.host}:{settings.port}"
            raise SettingsError(f"cannot listen on {address}: {error.strerror}", param="port") from error


def _start(settings: Settings) -> None:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray
    from ray import serve

    from service.app import build

    talkative = settings.log_level == "debug" and settings.log_format == "text"
    ray.init(
        address="local",
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        log_to_driver=talkative,
        logging_level=logging.INFO if talkative else logging.ERROR,
    )
    for number in _SIGNALS:  # Ray has put handlers of its own there
        signal.signal(number, _interrupt)
    if not talkative:
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(
        http_options={"host": settings.host, "port": settings.port},
        logging_config={
            "log_level": settings.log_level.upper(),
            "encoding": settings.log_format.upper(),
            "enable_access_log": False,
        },
    )
    try:
        serve.run(build(settings), name="mrp", route_prefix="/")
    except RuntimeError as error:
        raise SettingsError(f"the service did not start: {error}") from error


def _stop() -> None:
    import ray
    from ray import serve

    if ray.is_initialized():
        serve.shutdown()
        ray.shutdown()


def _ready(settings: Settings, seconds: float) -> str:
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104 - compared only
    url = f"http://{host}:{settings.port}"
    body = '{"messages": [{"role": "user", "content": "Tom has 5 apples, gets 3, loses 2."}]}'
    return (
        f"{settings.model_name} is served on {url} after {seconds:.0f} s; fields and examples: {url}/docs\n"
        f"try: curl -s {url}/generate -H 'Content-Type: application/json' -d '{body}'"
    )


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    """A setting as an option; None means not given, so that environment and file still count."""
    default = "" if field.default in (None, ()) else f" (default: {_short(field.default)})"
    kind, flag = _plain_type(field.annotation), name.replace("_", "-")
    names = f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"
    option = typer.Option(None, names, help=f"{field.description}{default}", show_default=False)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind | None)


def _plain_type(annotation: Any) -> Any:
    """The type a flag's text is turned into: the first plain type in the annotation, text otherwise."""
    if annotation in (bool, int, float, str, Path):
        return annotation
    plain = [_plain_type(part) for part in get_args(annotation) if part is not type(None)]
    return plain[0] if plain and plain[0] in (bool, int, float, Path) else str


def _short(value: object) -> str:
    return "the shipped demo" if isinstance(value, str) and os.sep in value else str(value)


command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [_option(name, field) for name, field in Settings.model_fields.items()]
)
