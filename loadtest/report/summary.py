"""Turns rows into points: the results of a service at one level of load. Percentiles are of the nearest rank.

Latencies are of the requests that were due during the level, without a warm-up. Throughput counts blocks by their time
of arrival.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from loadtest.generator.rows import UNFINISHED, Level, Request, Row
from loadtest.report.scenario import Run, Slo


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)] if ordered else None


@dataclass(frozen=True)
class Sample:
    """The CPU seconds of the load generator and three of the service's counters at one time."""

    at: float
    client_cpu_s: float
    forwards: float
    rows: float
    tokens: float


@dataclass(frozen=True)
class Window:
    stage: int
    level: float
    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclass(frozen=True)
class Point:
    """One level of one run. `level`: users of a closed loop, requests per second of an open one. None: not known.

    `good_per_s` and `good_tokens_per_s` are the goodput: requests that met the objective (`Slo`), and their tokens. A
    request counts when it was due.
    """

    run: str
    loop: str
    mode: str
    level: float
    seconds: float
    requests: int
    failed: int
    unfinished: int
    requests_per_s: float
    tokens_per_s: float
    good_share: float | None
    good_per_s: float
    good_tokens_per_s: float
    first_block_p50_ms: float | None
    first_block_p95_ms: float | None
    first_block_p99_ms: float | None
    gap_p50_ms: float | None
    gap_p95_ms: float | None
    total_p50_ms: float | None
    total_p95_ms: float | None
    tokens_per_forward: float | None
    late_p95_ms: float | None
    rows_per_forward: float | None = None  # of the engine, all requests together
    tokens_per_engine_forward: float | None = None
    engine_forward_ms: float | None = None
    client_cpu: float | None = None  # cores that the load generator took
    part: bool = False  # one mode of a mixed run


def windows(run: Run, rows: Sequence[Row], warm_s: float) -> list[Window]:
    """The stages that took place. A closed loop has a warm-up of at most half a stage; open arrivals have none."""
    stages = run.profile.stages
    warm_s = warm_s if run.loop == "closed" else 0.0
    return [
        Window(row.stage, row.level, row.at + min(warm_s, seconds / 2), row.at + seconds)
        for row in rows
        if isinstance(row, Level)
        for seconds in (stages[row.stage].seconds,)
    ]


def points(run: Run, rows: Sequence[Row], samples: Sequence[Sample], slo: Slo, warm_s: float) -> list[Point]:
    """A point for every level. A mixed run also has one for every mode."""
    every = []
    requests = [row for row in rows if isinstance(row, Request)]
    modes = sorted({row.mode for row in requests}) if run.mixed else []
    for window in windows(run, rows, warm_s):
        every.append(_with_samples(point(run, window, requests, slo), window, samples))
        every += [point(run, window, [row for row in requests if row.mode == mode], slo, mode) for mode in modes]
    return every


def point(run: Run, window: Window, requests: Sequence[Request], slo: Slo, mode: str = "") -> Point:
    closed = run.loop == "closed"  # open arrivals name their stage
    due = [row for row in requests if (_within(row.at, window) if closed else row.stage == window.stage)]
    answered = [row for row in due if row.ok]
    came = [tokens for row in requests for at, tokens in row.blocks if _within(row.at + at / 1000, window)]
    ended = sum(row.ok and _within(row.at + row.total_ms / 1000, window) for row in requests)
    unfinished = sum(row.error == UNFINISHED for row in due)
    good = [row for row in answered if is_good(row, slo)]
    firsts = [row.first_block_ms for row in answered if row.first_block_ms is not None]
    gaps = [gap for row in answered for gap in row.gaps_ms]
    totals = [row.total_ms for row in answered]
    return Point(
        run=run.name,
        loop=run.loop,
        mode=mode or run.modes,
        level=window.level,
        seconds=round(window.seconds, 2),
        requests=len(due),
        failed=len(due) - len(answered) - unfinished,
        unfinished=unfinished,
        requests_per_s=ended / window.seconds,
        tokens_per_s=sum(came) / window.seconds,
        good_share=len(good) / len(due) if due else None,
        good_per_s=len(good) / window.seconds,
        good_tokens_per_s=sum(row.tokens for row in good) / window.seconds,
        first_block_p50_ms=percentile(firsts, 0.5),
        first_block_p95_ms=percentile(firsts, 0.95),
        first_block_p99_ms=percentile(firsts, 0.99),
        gap_p50_ms=percentile(gaps, 0.5),
        gap_p95_ms=percentile(gaps, 0.95),
        total_p50_ms=percentile(totals, 0.5),
        total_p95_ms=percentile(totals, 0.95),
        tokens_per_forward=_tokens_per_forward(answered),
        late_p95_ms=percentile([row.late_ms for row in due], 0.95),
        part=bool(mode),
    )


def is_good(row: Request, slo: Slo) -> bool:
    """Whether a request met the objective. Without a stream, the whole answer counts as its first block."""
    first = row.total_ms if row.first_block_ms is None else row.first_block_ms
    return row.ok and first <= slo.first_block_ms and max(row.gaps_ms, default=0.0) <= slo.gap_ms


def saturation(points: Sequence[Point]) -> Point | None:
    """The lowest level of a closed loop that has 95 % of the highest throughput."""
    best = max((point.tokens_per_s for point in points), default=0.0)
    reached = [point for point in points if best and point.tokens_per_s >= 0.95 * best]
    return min(reached, key=lambda point: point.level) if reached else None


def _with_samples(every: Point, window: Window, samples: Sequence[Sample]) -> Point:
    """The point with what the samples in its window say of the engine's forwards and the load generator."""
    inside = [sample for sample in samples if _within(sample.at, window)]
    if len(inside) < 2:
        return every
    first, last = inside[0], inside[-1]
    seconds, forwards = last.at - first.at, last.forwards - first.forwards
    every = replace(every, client_cpu=(last.client_cpu_s - first.client_cpu_s) / seconds)
    if not forwards:
        return every
    return replace(
        every,
        rows_per_forward=(last.rows - first.rows) / forwards,
        tokens_per_engine_forward=(last.tokens - first.tokens) / forwards,
        engine_forward_ms=1000 * seconds / forwards,
    )


def _within(at: float, window: Window) -> bool:
    return window.since <= at < window.until


def _tokens_per_forward(rows: Iterable[Request]) -> float | None:
    """All tokens divided by all forwards, not a mean of ratios."""
    counted = [(row.tokens, row.tokens / row.tokens_per_forward) for row in rows if row.tokens_per_forward]
    forwards = sum(forwards for _, forwards in counted)
    return sum(tokens for tokens, _ in counted) / forwards if forwards else None
