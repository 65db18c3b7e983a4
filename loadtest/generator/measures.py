"""Additional measures for locust's statistics, and the raw rows.

The listener of locust's `request` event gets an `Observation` in the event's context. Time to first block, time between
blocks, tokens per second and tokens per forward become separate entries of locust's statistics: in its tables, CSV,
JSON and web page. They are not `request` events, so "Aggregated" counts requests only. Workers send rows to the master.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import msgspec
from locust.env import Environment
from locust.runners import WorkerRunner

from loadtest.generator.protocol import Observation
from loadtest.generator.rows import Level, Row, from_observation

ROWS = "mrp_rows"
_FLUSH_S = 0.5


def entries(observation: Observation) -> Iterator[tuple[str, float]]:
    """Kind and value of every additional entry of a request. Locust's percentiles are integers, hence "per 100"."""
    if observation.first_block_s is not None:
        yield "TTFB ms", observation.first_block_s * 1000
    for gap in observation.gaps_s:
        yield "block ms", gap * 1000
    if observation.tokens_per_s is not None:
        yield "tokens/s", observation.tokens_per_s
    if observation.ok and observation.tokens_per_forward is not None:
        yield "tok/100f", observation.tokens_per_forward * 100


class Measures:
    """Turns observations and levels into statistics and rows."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._offset = time.time() - time.perf_counter()  # so that a wall clock without jumps results
        self._rows: list[dict[str, Any]] = []
        environment.events.request.add_listener(self._request)
        environment.events.report_to_master.add_listener(self._report)
        environment.events.worker_report.add_listener(self._reported)
        environment.events.quit.add_listener(lambda **_: self._flush())  # after the last reports of workers
        gevent.spawn(self._flush_often)

    def level(self, at: float, seconds: float, level: float) -> None:
        self._add(Level(round(at + self._offset, 4), seconds, level))

    def unfinished(self, observation: Observation) -> None:
        self._add(from_observation(observation, self._offset))

    def _request(self, name: str, context: dict[str, Any], **_: object) -> None:
        observation = context.get("observation")
        if observation is None:
            return
        for kind, value in entries(observation):
            self._environment.stats.get(name, kind).log(value, 0)
        self._add(from_observation(observation, self._offset))

    def _add(self, row: Row) -> None:
        if getattr(self._environment.parsed_options, "rows", ""):
            self._rows.append(msgspec.to_builtins(row))  # workers send them to the master

    def _report(self, data: dict[str, Any], **_: object) -> None:
        data[ROWS], self._rows = self._rows, []

    def _reported(self, data: dict[str, Any], **_: object) -> None:
        self._rows += data.pop(ROWS, [])

    def _flush_often(self) -> None:
        while not isinstance(self._environment.runner, WorkerRunner):
            gevent.sleep(_FLUSH_S)
            self._flush()

    def _flush(self) -> None:
        if self._rows and not isinstance(self._environment.runner, WorkerRunner):
            rows, self._rows = self._rows, []
            with Path(self._environment.parsed_options.rows).open("ab") as file:
                file.write(msgspec.json.Encoder().encode_lines(rows))
