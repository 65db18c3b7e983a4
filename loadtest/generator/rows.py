"""Raw rows: one JSON line for each request and each change of level.

A run writes rows, and every report is made from them. Times are wall-clock seconds. Times within a request are
milliseconds from its intended start.
"""

import itertools
from pathlib import Path

import msgspec

from loadtest.generator.protocol import Observation

#: the error of a request that was cut because the run ended
UNFINISHED = "unfinished when the run ended"


class Request(msgspec.Struct, frozen=True, tag_field="row", tag="request"):
    at: float
    late_ms: float  # delay of the sending
    route: str
    mode: str
    status: int
    error: str
    finish: str
    first_block_ms: float | None
    total_ms: float
    blocks: list[tuple[float, int]]  # arrival and tokens of each
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    tokens_per_forward: float | None

    @property
    def ok(self) -> bool:
        return self.status == 200 and not self.error

    @property
    def gaps_ms(self) -> list[float]:
        times = [at for at, _ in self.blocks]
        return [after - before for before, after in itertools.pairwise(times)]


class Level(msgspec.Struct, frozen=True, tag_field="row", tag="level"):
    """A change of the level: users, or requests per second, from this time on."""

    at: float
    seconds: float
    level: float

    def span(self, warm_s: float) -> tuple[float, float]:
        """From when until when it counts: without a warm-up of at most half of it."""
        return self.at + min(warm_s, self.seconds / 2), self.at + self.seconds


Row = Request | Level


def from_observation(observation: Observation, offset: float) -> Request:
    """The row of a request that has ended. `offset`: of the wall clock from the observation's."""
    first, due = observation.first_block_s, observation.due
    return Request(
        at=round(due + offset, 4),
        late_ms=_ms(observation.began - due),
        route=observation.route.name,
        mode=observation.mode,
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


def read(path: Path) -> list[Row]:
    return msgspec.json.Decoder(Row).decode_lines(path.read_bytes())


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
