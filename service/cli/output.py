"""The output of the commands: consoles with the width of the terminal, tables, and progress bars or lines."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

#: columns without a terminal, of text and of tables; rich's default of 80 would break help and tables
WIDE, OF_TABLES = 140, 250
#: columns of the longest knob in a plan, `tokens_per_step=1`
_KNOB = 17
#: the most progress lines without a terminal
_LINES = 20


def results() -> Console:
    """The console of results, on stdout."""
    return Console(width=None if sys.stdout.isatty() else OF_TABLES, highlight=False)


def notes() -> Console:
    """The console of progress and notes, on stderr."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else WIDE, highlight=False)


def is_on_a_terminal() -> bool:
    """Whether one of the standard streams is a terminal. Rich then uses its width, even for a pipe."""
    return any(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def table(*names: str, plan: str = "") -> Table:
    """A table with these columns. No cell is cut. The column `plan`, if there is one, keeps its knobs whole."""
    columns = (Column(name, overflow="fold", min_width=_KNOB if name == plan else None) for name in names)
    return Table(*columns, box=None, pad_edge=False)


class Counter:
    """Shows the progress in parts of a whole: on a terminal a bar with the time left, else lines."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._total, self._done = total, done
        self._console = notes()
        what = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, ratio=1))
        columns = BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(), what
        # Without a terminal the bar is off, since rich would write its last state into the log.
        self._bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal, expand=True)
        self._task = self._bar.add_task("", total=total, completed=done)

    def __enter__(self) -> Counter:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def next(self, what: str, parts: int = 1) -> None:
        self.reach(self._done + parts, what)

    def reach(self, done: int, what: str) -> None:
        """Sets the number of parts done. `what`: the name of the last one."""
        lines, self._done = self._done * _LINES // self._total, done
        self._bar.update(self._task, completed=done, description=what)
        if not self._console.is_terminal and done * _LINES // self._total > lines:
            self._console.print(f"{done}/{self._total}  {what}", markup=False, soft_wrap=True)
