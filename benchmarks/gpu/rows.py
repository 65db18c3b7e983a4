"""The size of a stage, and its rows, written one by one: a stage that is cut keeps its rows so far."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from benchmarks.machine import machine_name


@dataclass(frozen=True, slots=True)
class Extent:
    """Shapes by name (shapes.py), numbers of concurrent requests, rows of a step and the tokens before them.

    `block_sizes`: of the paper's rows. `torch_profiler_dir`: folder of traces, None for none.
    """

    shapes: Sequence[str] = ("sdar-1.7b", "sdar-4b", "sdar-8b")
    concurrencies: Sequence[int] = (1, 8, 32, 128)
    rows: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128)
    context: int = 1024
    rounds: int = 3
    new_tokens: int = 96
    block_sizes: Sequence[int] = (16, 4)
    torch_profiler_dir: Path | None = None


class Rows:
    """One JSON object a line, with the device's name and the seconds since the stage began.

    `seconds`: the stage's time. A stage asks `over` before it begins something. A context manager.
    """

    def __init__(self, path: Path, device: torch.device, seconds: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        self._machine = machine_name(device)
        self._began = time.monotonic()
        self._seconds = seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, what: str, **values: Any) -> None:
        """One row, on the terminal, too."""
        row = {"what": what, "machine": self._machine, "at_s": round(time.monotonic() - self._began, 1), **values}
        line = json.dumps(row)
        self._file.write(line + "\n")
        self._file.flush()
        print(line, flush=True)  # noqa: T201

    def over(self, what: str) -> bool:
        """Whether the time is over. Then a row names `what`, which is left out."""
        over = time.monotonic() - self._began > self._seconds
        if over:
            self.write("left out: no time", of=what)
        return over
