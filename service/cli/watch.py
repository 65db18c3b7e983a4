"""Watches what a service on one machine needs, on threads of its own.

`ProcessWatch` tells of the end of a process without which Ray cannot heal itself. Serve replaces all other processes
once they have ended. `IngressWatch` ends an ingress that has stopped to answer.
"""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from service.cli.processes import Stat, command_line, listener, of_session, stat

#: seconds between two looks at the processes, and between two questions to the ingress, each of which may take as long
_LOOK_S, _ASK_S = 0.5, 2.0
#: Seconds without an answer after which an ingress is killed: one that takes no CPU time at all, and one that is busy.
_STOPPED_S, _BUSY_S = 8.0, 30.0


def needed(session: int) -> dict[int, tuple[str, Stat]]:
    """The processes of Ray that nothing replaces, by pid: the GCS, the raylet, and the raylet's agents.

    The raylet ends itself, and with it all that it started, when an agent has ended.
    """
    seen = of_session(session)
    latest = {one.name: pid for pid, one in sorted(seen.items(), key=lambda item: item[1].started)}
    heads = {latest[name]: (f"Ray's {name}", seen[latest[name]]) for name in ("gcs_server", "raylet")}
    agents = {
        pid: ("an agent of Ray's raylet", one)
        for pid, one in seen.items()
        if one.parent == latest["raylet"] and "agent" in command_line(pid).lower()
    }
    return agents | heads  # an agent is named, though the raylet soon ends, too


class ProcessWatch(threading.Thread):
    """Calls `lost` with the name of the first of these processes that ends."""

    def __init__(self, processes: dict[int, tuple[str, Stat]], lost: Callable[[str], None]) -> None:
        super().__init__(name="needed", daemon=True)
        self._processes, self._lost = processes, lost

    def run(self) -> None:
        """Until one of them has ended."""
        while True:
            for pid, (name, was) in self._processes.items():
                if (now := stat(pid)) is None or now.started != was.started:
                    self._lost(f"{name} (process {pid})")
                    return
            time.sleep(_LOOK_S)


class IngressWatch(threading.Thread):
    """Kills the process of this session that listens on the port, once it has not answered `/live` for too long.

    `say`: called with a line before. A port on which nobody listens is not silent: Serve starts another ingress.
    """

    def __init__(self, host: str, port: int, say: Callable[[str], None]) -> None:
        super().__init__(name="silence", daemon=True)
        self._host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - where to ask
        self._port, self._say = port, say

    def run(self) -> None:
        """For ever."""
        while True:
            since = time.monotonic()
            if self._answers():
                time.sleep(_ASK_S)
            else:
                self._wait_or_kill(since)

    def _wait_or_kill(self, since: float) -> None:
        """Returns when it answers again or was killed."""
        pid = listener(self._port, of_session(os.getsid(0)))
        first = pid and stat(pid)
        while pid and first and not self._answers():
            now, silent_s = stat(pid), time.monotonic() - since
            if now is None or now.started != first.started:
                return
            if silent_s > (_STOPPED_S if now.cpu == first.cpu else _BUSY_S):
                self._say(f"the ingress has not answered for {silent_s:.0f} s, so its process {pid} is replaced")
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                return

    def _answers(self) -> bool:
        """False if nothing comes in time. Any other trouble of a connection means that the port has no process."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_ASK_S)
        try:
            connection.request("GET", "/live")
            connection.getresponse().read()
        except TimeoutError:
            return False
        except (OSError, http.client.HTTPException):
            return True
        finally:
            connection.close()
        return True
