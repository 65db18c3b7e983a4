"""A thread that watches the event loop of an ingress, and names its requests when it hangs.

The lines of requests are written when they end. An ingress that hangs is killed (`cli/processes.py`), so its requests
would have no line. A call in C that holds the interpreter's lock stops this thread, too.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Collection
from itertools import islice
from types import FrameType

from service.gateway.request_log import Record

_log = logging.getLogger(__name__)

#: seconds between two questions to the loop, and without an answer until the log gets a line
_ASK_S, _SILENT_S = 1.0, 3.0
#: the most requests that lines name, and the most calls on the stack
_MOST_REQUESTS, _MOST_CALLS = 20, 4


class StallWatch(threading.Thread):
    """Watches the running loop. `in_work`: the requests that have not ended."""

    def __init__(self, in_work: Collection[Record], ask_s: float = _ASK_S, silent_s: float = _SILENT_S) -> None:
        super().__init__(name="stall", daemon=True)
        self._in_work, self._ask_s, self._silent_s = in_work, ask_s, silent_s
        self._loop, self._loops_thread = asyncio.get_running_loop(), threading.get_ident()

    def run(self) -> None:
        while True:
            answered, since = threading.Event(), time.monotonic()
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # the loop is closed
                return
            if not answered.wait(self._silent_s):
                self._report(time.monotonic() - since)
                while not answered.wait(self._silent_s):
                    if self._loop.is_closed():
                        return
                _log.warning("the ingress answers again after %.0f s", time.monotonic() - since)
            time.sleep(self._ask_s)

    def _report(self, seconds: float) -> None:
        """One line for the request that the loop works at, or for those that no replica has yet; one for the others."""
        records, task = sorted(self._in_work, key=lambda record: -record.started), self._task()
        suspects = [record for record in records if record.task is task]
        suspects = suspects or [record for record in records if not record.requests]
        for record in suspects[:_MOST_REQUESTS]:
            _log.error("the ingress hangs at a request", extra=record.about())
        rest = islice((record.request_id for record in records if record not in suspects), _MOST_REQUESTS)
        about = {"requests": len(records), "others": ",".join(rest), "at": self._stack()}
        _log.error("the ingress has not answered for %.0f s", seconds, extra=about)

    def _task(self) -> asyncio.Task[object] | None:
        try:
            return asyncio.current_task(self._loop)
        except RuntimeError:
            return None

    def _stack(self) -> str:
        """The innermost calls of the loop's thread by module and line, without any value."""
        frame, calls = sys._current_frames().get(self._loops_thread), list[str]()  # noqa: SLF001 - as documented
        while frame is not None and len(calls) < _MOST_CALLS:
            calls.append(_line_of(frame))
            frame = frame.f_back
        return " < ".join(calls)


def _line_of(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', 'unnamed code')}:{frame.f_lineno}"
