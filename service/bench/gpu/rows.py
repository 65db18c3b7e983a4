"""The rows of a stage, written one by one: a stage that is cut keeps what it has measured."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Self

import torch

from service.bench.machine import machine_name


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
        """Whether the time is over. Then a row says what was left out."""
        over = time.monotonic() - self._began > self._seconds
        if over:
            self.write("left out: no time", of=what)
        return over
