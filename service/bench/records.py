"""What a calibration has measured so far: a line of JSON for every chunk of every plan, so that it can go on later.

The first line says what was being measured; a file of something else is begun anew. Knows no engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Job(NamedTuple):
    """A plan over the prompts from `start` on, `together` at once."""

    plan: str
    together: int
    start: int


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a job. `answers`: a digest of each answer's tokens, to compare them."""

    plan: str
    together: int
    start: int
    right: list[bool]
    answers: list[str]
    tokens: int
    forwards: int
    cpu_s: float
    wall_s: float

    @property
    def job(self) -> Job:
        """What was asked."""
        return Job(self.plan, self.together, self.start)


class Notebook:
    """Records by job, in memory and, with a path, on disk."""

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self.records: dict[Job, Record] = {}
        self._path, self._about = path, json.loads(json.dumps(about))
        if path is not None and not self._read(path):
            self.records.clear()
            path.write_text(json.dumps(self._about) + "\n", encoding="utf-8")

    def add(self, record: Record) -> None:
        """Keeps a record."""
        self.records[record.job] = record
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(record)) + "\n")

    def remove(self) -> None:
        """Deletes the file; what was measured is written elsewhere."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _read(self, path: Path) -> bool:
        """Whether the file is of this very calibration. A last line that was cut off is left out."""
        if not path.is_file():
            return False
        first, *rest = path.read_text(encoding="utf-8").split("\n")
        try:
            if json.loads(first) != self._about:
                return False
            for line in rest[:-1]:
                record = Record(**json.loads(line))
                self.records[record.job] = record
        except (ValueError, TypeError):
            return False
        if rest and rest[-1]:
            path.write_text("\n".join([first, *rest[:-1], ""]), encoding="utf-8")
        return True
