"""Runs locust as a separate process, and samples the service's counters while it runs.

locust patches Python's sockets and threads for gevent, so this process must not import it.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from loadtest.generator.rows import Row, read
from loadtest.harness import ROOT, metrics
from loadtest.report.scenario import Run
from loadtest.report.summary import Sample

LOCUSTFILE = ROOT / "loadtest" / "locustfile.py"
_EVERY_S = 1.0


@dataclass(frozen=True)
class Record:
    run: Run
    rows: list[Row]
    samples: Sequence[Sample] = ()


@dataclass(frozen=True)
class Driver:
    url: str
    folder: Path
    api_key: str = ""

    async def drive(self, run: Run, watch: Callable[[], None] = lambda: None) -> Record:
        rows, samples = self.folder / f"{run.name}.jsonl", list[Sample]()
        rows.unlink(missing_ok=True)
        with (self.folder / f"{run.name}.log").open("w", encoding="utf-8") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command(run), cwd=ROOT, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
            try:
                async with httpx.AsyncClient(base_url=self.url, timeout=10) as http:
                    ended = asyncio.create_task(process.wait())
                    while not (await asyncio.wait({ended}, timeout=_EVERY_S))[0]:
                        samples.append(await sample(http, process.pid))
                        watch()
            finally:
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
                    await process.wait()
        if process.returncode:
            raise SystemExit(f"locust ended with {process.returncode}: see {log.name}")
        return Record(run, read(rows), samples)

    def _command(self, run: Run) -> Sequence[str]:
        prefix = str(self.folder / run.name)
        return [
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", self.url, "--headless"),
            *("--only-summary", "--exit-code-on-error", "0", "--csv", prefix, "--json-file", f"{prefix}_stats"),
            *("--rows", f"{prefix}.jsonl", *run.options()),
            *(("--api-key", self.api_key) if self.api_key else ()),
        ]


async def sample(http: httpx.AsyncClient, locust: int) -> Sample:
    """The CPU time of locust's process, and the service's counters. Other servers have other counters: 0."""
    cpu_s, totals = 0.0, dict[str, float]()
    try:
        times = psutil.Process(locust).cpu_times()
        cpu_s = times.user + times.system
        totals = await metrics(http)
    except (psutil.Error, httpx.HTTPError, ValueError):  # locust has ended, or a page of another form
        pass
    names = ("rows_per_forward_count", "rows_per_forward_sum", "generation_tokens_total")
    return Sample(time.time(), cpu_s, *(totals.get(name, 0.0) for name in names))
