"""Runs locust as a separate process, and reads its rows and the service's counters while it runs.

locust patches Python's sockets and threads for gevent, so this process must not import it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from loadtest.generator.rows import Row, from_json
from loadtest.report.scenario import Run
from loadtest.report.summary import Sample

ROOT = Path(__file__).resolve().parents[2]
LOCUSTFILE = ROOT / "loadtest" / "locustfile.py"
_EVERY_S = 1.0


class LocustFailed(SystemExit):
    """locust did not run to its end."""


@dataclass
class Record:
    """The data of a run so far."""

    run: Run
    rows: list[Row] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)


@dataclass(frozen=True)
class Driver:
    """Runs locust against one service. Its files go into `folder`."""

    url: str
    folder: Path
    api_key: str = ""

    async def drive(self, run: Run, watch: Callable[[Record], None]) -> Record:
        """Makes one run. `watch` gets the record about once a second."""
        record, rows = Record(run), _Tail(self.folder / f"{run.name}.jsonl")
        with (self.folder / f"{run.name}.log").open("w", encoding="utf-8") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command(run), cwd=ROOT, stdout=log, stderr=log, env=self._environment()
            )
            try:
                async with httpx.AsyncClient(base_url=self.url, timeout=10) as http:
                    ended = asyncio.create_task(process.wait())
                    while not (await asyncio.wait({ended}, timeout=_EVERY_S))[0]:
                        record.samples += await sample(http)
                        record.rows += rows.read()
                        watch(record)
            finally:
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
                    await process.wait()
        record.rows += rows.read()
        if process.returncode:
            raise LocustFailed(f"locust ended with {process.returncode}: see {log.name}")
        return record

    def _command(self, run: Run) -> Sequence[str]:
        prefix = str(self.folder / run.name)
        return [
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", self.url, "--headless"),
            *("--only-summary", "--exit-code-on-error", "0", "--csv", prefix, "--json-file", f"{prefix}_stats"),
            *("--rows", f"{prefix}.jsonl", *run.options()),
            *(("--api-key", self.api_key) if self.api_key else ()),
        ]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT)}


class _Tail:
    """Reads the rows that were added to a file since the last read."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._path, self._read = path, 0

    def read(self) -> list[Row]:
        """The new rows. The file may not exist yet."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return [from_json(json.loads(line)) for line in whole.splitlines()]


async def sample(http: httpx.AsyncClient) -> list[Sample]:
    """The service's counters of forwards, rows and tokens. Empty if the service has none."""
    try:
        page = (await http.get("/metrics")).text
    except httpx.HTTPError:
        return []
    names = ("mrp_rows_per_forward_count", "mrp_rows_per_forward_sum", "mrp_generation_tokens_total")
    sums = dict.fromkeys(names, 0.0)
    for line in page.splitlines():
        name = line.partition("{")[0]
        if name in sums:
            sums[name] += float(line.rpartition(" ")[2])
    forwards, rows, tokens = (sums[name] for name in names)
    return [Sample(time.time(), forwards, rows, tokens)] if forwards else []
