"""The size of a stage, and its rows, written one by one: a stage that is cut keeps its rows so far."""

import gc
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from benchmarks.machine import machine_name
from benchmarks.shapes import SHAPES, Shape
from service.demo import CHECKPOINT

#: the published ones, and for a try on a CPU one about as small as the demo, and one for the golden checkpoints
GPU_SHAPES = SHAPES | {"demo": Shape(72, 192, 28, 2, 1, 32), "tiny": Shape(72, 128, 3, 4, 2, 16, 1100, 2048)}


@dataclass(frozen=True, slots=True)
class Extent:
    """The shapes by name (`GPU_SHAPES`), loads and sizes of a stage."""

    shapes: Sequence[str] = ("sdar-8b", "sdar-4b", "sdar-1.7b")
    concurrency: Sequence[int] = (1, 8, 32, 128)
    rows: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128)  # of a step
    context: int = 1024  # tokens before the rows of a step
    rounds: int = 2
    new_tokens: int = 64
    block_sizes: Sequence[int] = (1, 8, 16)  # of the modes; one token is the autoregressive line
    together: int = 32  # requests at once of the comparison of answers
    torch_profiler_dir: Path | None = None  # folder of traces
    model: Path = CHECKPOINT  # the checkpoint that is inflated
    plans: str = "static,default,direct@mrp_steps=2,balanced,fast,lossless"  # of the service's users
    learn_s: float = 3.0  # of users at a load; these seconds have rows of their own
    steady_s: float = 15.0  # of users, after those
    wait_s: float = 180.0  # for the service's start and for any answer, at most
    flags: str = ""  # of `mrp-serve serve`


class Rows:
    """One JSON object a line, with the device's name and the seconds since the stage began. A context manager.

    `seconds`: the stage's time. `failed`: whether anything was wrong.
    """

    def __init__(self, path: Path, device: torch.device, seconds: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        self._machine = machine_name(device)
        self._began = time.monotonic()
        self._seconds = seconds
        self.failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._seconds - (time.monotonic() - self._began))

    def write(self, what: str, **values: Any) -> None:
        row = {"what": what, "machine": self._machine, "at_s": round(time.monotonic() - self._began, 1), **values}
        line = json.dumps(row)
        self._file.write(line + "\n")
        self._file.flush()
        print(line, flush=True)  # noqa: T201

    def over(self, what: str) -> bool:
        """Whether the time is over. Then a row names `what`, which is left out."""
        over = self.seconds_left == 0
        if over:
            self.write("left out: no time", of=what)
        return over

    def part(self, what: str, run: Callable[[], None]) -> None:
        """Runs a part of the stage, if there is time. Its error is a row, and the next part follows."""
        if self.over(what):
            return
        try:
            run()
        except Exception:  # noqa: BLE001 - the next part tells more
            self.failed = True
            self.write("error", of=what, error=traceback.format_exc(limit=-6))
        gc.collect()  # engines have cycles, and the next part needs their memory
        torch.cuda.empty_cache()
