"""Raw rows: one JSON line for each request and each change of level.

A run writes rows, and every report is made from them. Times are wall-clock seconds. Times within a request are
milliseconds from its intended start.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.generator.protocol import Observation

#: the error of a request that was cut because the run ended
UNFINISHED = "unfinished when the run ended"


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


Row = Request | Level
_KINDS: dict[str, type[Request | Level]] = {"request": Request, "level": Level}


def from_observation(observation: Observation, offset: float, stage: int | None) -> Request:
    """The row of a request that has ended. `offset`: of the wall clock from the observation's."""
    first, due = observation.first_block_s, observation.due
    return Request(
        at=round(due + offset, 4),
        late_ms=_ms(observation.began - due),
        route=observation.route.name,
        mode=observation.mode,
        stage=stage,
        status=observation.status,
        error=observation.error,
        finish=observation.finish,
        first_block_ms=None if first is None else _ms(first),
        total_ms=_ms(observation.total_s),
        blocks=[(_ms(at - due), tokens) for at, tokens in observation.blocks],
        tokens=observation.tokens,
        prompt_tokens=observation.prompt_tokens,
        cached_tokens=observation.cached_tokens,
        tokens_per_forward=observation.tokens_per_forward,
    )


def to_json(row: Row) -> dict[str, Any]:
    """A row as a JSON object."""
    return {"row": "request" if isinstance(row, Request) else "level", **asdict(row)}


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
