"""Runs locust as a process of its own, and sums up its rows: throughput, and times as percentiles.

locust patches Python's sockets and threads for gevent, so no process of asyncio may import it.
"""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtest.generator.rows import Level, Request, Row, read
from loadtest.harness import ROOT, percentile


async def drive(url: str, prefix: Path, *options: str) -> list[Row]:
    """Runs locust to its end. The names of its page, CSV, log and rows begin with `prefix`."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    rows, log = Path(f"{prefix}.jsonl"), Path(f"{prefix}.log")
    rows.unlink(missing_ok=True)
    command = [sys.executable, "-m", "locust", "-f", ROOT / "loadtest" / "locustfile.py", "--host", url, "--headless"]
    command += ["--only-summary", "--exit-code-on-error", "0", "--html", f"{prefix}.html", "--csv", prefix]
    command += ["--rows", rows, *options]
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
    if process.returncode:
        last = log.read_text(encoding="utf-8").splitlines()[-1:]
        raise SystemExit(f"locust ended with {process.returncode}: {''.join(last)} ({log})")
    return read(rows)


@dataclass(frozen=True)
class Summary:
    """The requests that were due in a span of time, and the tokens that came in it. None: there was nothing."""

    requests: int
    failed: int  # cut ones included
    requests_per_s: float
    tokens_per_s: float
    first_block_p50_ms: float | None
    first_block_p95_ms: float | None
    gap_p50_ms: float | None
    gap_p95_ms: float | None
    total_p50_ms: float | None


def summary(rows: Sequence[Row], since: float, until: float) -> Summary:
    requests = [row for row in rows if isinstance(row, Request)]
    due = [row for row in requests if since <= row.at < until]
    answered = [row for row in due if row.ok]
    tokens = sum(n for row in requests for at, n in row.blocks if since <= row.at + at / 1000 < until)
    ended = sum(row.ok and since <= row.at + row.total_ms / 1000 < until for row in requests)
    firsts = [row.first_block_ms for row in answered if row.first_block_ms is not None]
    gaps = [gap for row in answered for gap in row.gaps_ms]
    return Summary(
        requests=len(due),
        failed=len(due) - len(answered),
        requests_per_s=ended / (until - since),
        tokens_per_s=tokens / (until - since),
        first_block_p50_ms=percentile(firsts, 0.5),
        first_block_p95_ms=percentile(firsts, 0.95),
        gap_p50_ms=percentile(gaps, 0.5),
        gap_p95_ms=percentile(gaps, 0.95),
        total_p50_ms=percentile([row.total_ms for row in answered], 0.5),
    )


def levels(rows: Sequence[Row], warm_s: float) -> Iterator[tuple[float, Summary]]:
    """Every level that took place, and its summary without a warm-up."""
    return ((row.level, summary(rows, *row.span(warm_s))) for row in rows if isinstance(row, Level))
