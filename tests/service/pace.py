"""The pace of the replicas of a test's service: a file holds it, and the replicas read the file before every forward.

Each replica also writes a file with its name and its process.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: the environment's name of that file, and what it says when no forward is to be begun
VARIABLE, HOLD = "MRP_TESTS_PACE", "hold"
#: seconds between two looks at the file while it says that
POLL_S = 0.01


class Pace:
    def __init__(self, file: Path) -> None:
        self._file = file

    def full(self) -> None:
        self._file.unlink(missing_ok=True)

    def slow(self, seconds: float) -> None:
        """So much longer."""
        self._say(str(seconds))

    @contextmanager
    def released(self) -> Iterator[None]:
        """Releases the pace at the end. Otherwise a failed test would wait for answers that never come."""
        try:
            yield
        finally:
            self.full()

    def hold(self) -> None:
        self._say(HOLD)

    def name_of(self, process: int) -> str:
        """The replica, as metrics call it, that is this process; empty for one that has not come up yet."""
        card = _card(self._file, process)
        return card.read_text() if card.exists() else ""

    def _say(self, words: str) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(words)
        new.replace(self._file)


def write_card(replica: str) -> None:
    _card(Path(os.environ[VARIABLE]), os.getpid()).write_text(replica)


def _card(file: Path, process: int) -> Path:
    return file.with_name(f"replica-{process}")


def current_pace() -> str:
    try:
        return Path(os.environ[VARIABLE]).read_text()
    except FileNotFoundError:
        return ""
