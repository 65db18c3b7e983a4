"""The answers so far, in a file, so that a run that was interrupted goes on later.

The file has a line of JSON for each chunk of problems. Its first line names the circumstances.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.paper.decoders import Answer
from service.errors import SettingsError


class Chunk(NamedTuple):
    """Some problems of a task, from `start` on, by one row with `together` requests at once."""

    block_size: int
    together: int
    task: str
    row: str
    start: int


@dataclass(frozen=True, slots=True)
class Record:
    """The answers of a chunk, in order. `right`: whether each one is right; None for code that was not run."""

    chunk: Chunk
    answers: list[Answer]
    right: list[bool | None]
    seconds: float


class Records:
    """Records by chunk, in memory and on disk. SettingsError, which names `out`, for a file of other circumstances."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.by_chunk: dict[Chunk, Record] = {}
        self._path, self._first = path, json.dumps(about, sort_keys=True)
        if path.is_file():
            self._read()
        else:
            path.write_text(self._first + "\n", encoding="utf-8")

    def add(self, record: Record) -> None:
        self.by_chunk[record.chunk] = record
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")

    def _read(self) -> None:
        """Reads the records. An incomplete last line is cut off."""
        first, *lines = self._path.read_text(encoding="utf-8").split("\n")
        if first != self._first:
            raise SettingsError(
                f"out is {self._path.parent}, which has answers of other options; choose another folder", param="out"
            )
        whole = lines[:-1]
        for line in whole:
            values = json.loads(line)
            answers = [Answer(**answer) for answer in values["answers"]]
            record = Record(Chunk(*values["chunk"]), answers, values["right"], values["seconds"])
            self.by_chunk[record.chunk] = record
        self._path.write_text("\n".join([first, *whole, ""]), encoding="utf-8")
