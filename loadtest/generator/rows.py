"""Raw rows: one JSON line for each request, each change of level, and each sample of the client's own CPU time.

A run writes rows, and every report is made from them. Times are wall-clock seconds. Times within a request are
milliseconds from its intended start.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.generator.protocol import Observation

#: the error of a request that was cut because the run ended
UNFINISHED = "unfinished when the run ended"


@dataclass(frozen=True)
class Clock:
    """A wall clock without jumps: `time.perf_counter` plus an offset."""

    offset: float = field(default_factory=lambda: time.time() - time.perf_counter())

    def wall(self, at: float) -> float:
        """The wall-clock time of a `perf_counter` time."""
        return at + self.offset


@dataclass(frozen=True)
class Request:
    """The outcome of one request. `blocks`: arrival and tokens of each. `late_ms`: delay of the sending."""

    at: float
    late_ms: float
    route: str
    mode: str
    stage: int | None
    status: int
    error: str
    finish: str
    first_block_ms: float | None
    total_ms: float
    blocks: list[tuple[float, int]]
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    tokens_per_forward: float | None

    @property
    def ok(self) -> bool:
        """Whether the request got a whole answer."""
        return self.status == 200 and not self.error

    @property
    def gaps_ms(self) -> list[float]:
        """Milliseconds from each block to the next. Empty for an answer that was not streamed."""
        times = [at for at, _ in self.blocks]
        return [after - before for before, after in itertools.pairwise(times)]


@dataclass(frozen=True)
class Level:
    """A change of the level: users, or requests per second, from this time on."""

    at: float
    stage: int
    level: float


@dataclass(frozen=True)
class Client:
    """The CPU time that a process of the load generator has used so far, and its oldest request in progress.

    `oldest`: when that request was due; None if none is in progress.
    """

    at: float
    process: int
    cpu_s: float
    oldest: float | None = None


Row = Request | Level | Client
_KINDS: dict[str, type[Request | Level | Client]] = {"request": Request, "level": Level, "client": Client}


def from_observation(seen: Observation, clock: Clock, stage: int | None) -> Request:
    """The row of a request that has ended."""
    first = seen.first_block_s
    return Request(
        at=round(clock.wall(seen.due), 4),
        late_ms=_ms(seen.began - seen.due),
        route=seen.route.name,
        mode=seen.mode,
        stage=stage,
        status=seen.status,
        error=seen.error,
        finish=seen.finish,
        first_block_ms=None if first is None else _ms(first),
        total_ms=_ms(seen.total_s),
        blocks=[(_ms(at - seen.due), tokens) for at, tokens in seen.blocks],
        tokens=seen.tokens,
        prompt_tokens=seen.prompt_tokens,
        cached_tokens=seen.cached_tokens,
        tokens_per_forward=seen.tokens_per_forward,
    )


def to_json(row: Row) -> dict[str, Any]:
    """A row as a JSON object."""
    kind = next(name for name, kind in _KINDS.items() if isinstance(row, kind))
    return {"row": kind, **asdict(row)}


def append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Appends rows to a file."""
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def from_json(values: dict[str, Any]) -> Row:
    """The row of a JSON object."""
    return _KINDS[values["row"]](**{name: value for name, value in values.items() if name != "row"})


def read(path: Path) -> Iterator[Row]:
    """The rows of a file."""
    with path.open(encoding="utf-8") as lines:
        yield from (from_json(json.loads(line)) for line in lines)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
