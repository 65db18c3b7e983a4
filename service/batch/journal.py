"""The output of a batch, which is also its journal: one JSON line for each line of the input, in any order.

A line counts once its newline is written. So a killed program loses only lines in progress, and the next run asks them
again. After a power failure the lines of the last second may be missing, too.
"""

from __future__ import annotations

import fcntl
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import msgspec
from pydantic_core import to_json

from service.api.protocol import Json
from service.batch.lines import BatchLine
from service.errors import SettingsError


class _Written(msgspec.Struct):
    line: int
    custom_id: str
    error: msgspec.Raw = msgspec.Raw(b"null")


class Journal:
    """An output file, which this process alone may write. A torn last line is cut off.

    `count`, `errors`: numbers of the written lines. SettingsError if the file cannot be written or
    a line is no answer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = self.errors = 0
        self._checksums = array("L")  # of the id of each line, 0 for lines without an answer
        with self._writing():
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError:
            self.close()
            raise self._refusal("which another batch writes") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def has(self, line: BatchLine) -> bool:
        """Whether the line has its answer. SettingsError if the output has an answer to a line with another id."""
        written = self._checksums[line.number - 1] if line.number <= len(self._checksums) else 0
        if written and written != _checksum(line.custom_id):
            raise self._refusal(
                f"whose answer to line {line.number} is not for {line.custom_id!r}: it belongs to another input"
            )
        return bool(written)

    def write(self, output: Json) -> None:
        """Appends the output of a line. SettingsError if the disk is full or fails."""
        text = memoryview(to_json(output, inf_nan_mode="null") + b"\n")
        with self._writing():
            while text:
                text = text[os.write(self._file, text) :]
        self._note(output["line"], output["custom_id"], failed=output["error"] is not None)

    def sync(self) -> None:
        """Waits until the disk has all written lines. SettingsError if the disk fails."""
        with self._writing():
            os.fsync(self._file)

    def close(self) -> None:
        """As `sync`, and closes the file."""
        try:
            self.sync()
        finally:
            os.close(self._file)

    def _read(self) -> None:
        end = 0
        with self._path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):
                    break
                try:
                    written = msgspec.json.decode(text, type=_Written)
                except msgspec.DecodeError:
                    raise self._refusal(f"whose line {number} is no answer of a batch; choose another file") from None
                self._note(written.line, written.custom_id, failed=bytes(written.error) != b"null")
                end += len(text)
        os.ftruncate(self._file, end)

    def _note(self, number: int, custom_id: str, *, failed: bool) -> None:
        if number > len(self._checksums):
            self._checksums.extend([0] * (number - len(self._checksums)))
        self._checksums[number - 1] = _checksum(custom_id)
        self.count += 1
        self.errors += failed

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._refusal(f"which cannot be written: {error.strerror}") from None

    def _refusal(self, reason: str) -> SettingsError:
        return SettingsError(f"out is {self._path}, {reason}", param="out")


def _checksum(custom_id: str) -> int:
    return crc32(custom_id.encode("utf-8", "surrogatepass")) or 1
