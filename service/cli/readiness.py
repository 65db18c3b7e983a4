"""Until an application serves: what Serve says of it, told as it changes; why it never will, as an error.

Looks at what `serve.status()` gives. Knows no flags and starts nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from ray import serve

from service.errors import SettingsError
from service.rayserve.scaling import GENERATOR
from service.rayserve.serve_state import counted, last_line, place

#: says a line to whoever waits
Say = Callable[[str], None]

#: How often Serve is asked how far it is. Asking takes 40 ms of the CPU time that the replica wants.
_POLL_S = 0.5
#: a state without a failure is told after so long without a word
_QUIET_S = 10.0
#: errors of ours, which another try would only repeat: a checkpoint or a setting does not get better
_OURS = ("CheckpointError", "SettingsError")
#: what Serve says of its tries
_LEFT = re.compile(r"Retrying (\d+) more time")
_IN_VAIN = re.compile(r"failed to start (\d+) times in a row")


def wait_until_running(application: str, say: Say) -> None:
    """Returns when the application serves. SettingsError when it cannot, with what a replica failed of."""
    news = News(say, time.monotonic)
    while (seen := serve.status().applications[application]).status != "RUNNING":
        refuse(seen)
        news.look(seen.deployments)
        time.sleep(_POLL_S)


def refuse(seen: Any) -> None:
    """Raises SettingsError for an application for which waiting is in vain."""
    for deployment in seen.deployments.values():
        if deployment.status == "DEPLOY_FAILED" or last_line(deployment.message).startswith(_OURS):
            tries = _IN_VAIN.search(deployment.message)
            said = _failure(deployment.message) + (f", {tries[1]} times in a row" if tries else "")
            raise SettingsError(f"the service did not start: {said}")
    if seen.status == "DEPLOY_FAILED":
        raise SettingsError(f"the service did not start: {last_line(seen.message)}")


class News:
    """Says what is new of deployments: a failure at once, all else when nothing was said for a while."""

    def __init__(self, say: Say, clock: Callable[[], float]) -> None:
        self._say, self._clock = say, clock
        self._known = ("", "")
        self._said_at = clock()

    def look(self, deployments: Mapping[str, Any]) -> None:
        """Looks at them as they are now."""
        waiting = [(name, one) for name, one in deployments.items() if one.status != "HEALTHY"]
        if not waiting:
            return
        name, deployment = max(waiting, key=lambda named: bool(_failure(named[1].message)))
        failure = _failure(deployment.message)
        if tries := _LEFT.search(deployment.message):
            failure += f"; {tries[1]} more tries"
        found = counted(deployment)
        known = (found.split()[0], failure)  # how many run; what the others do passes
        quiet = self._clock() - self._said_at >= _QUIET_S
        if known != self._known and (quiet or failure not in ("", self._known[1])):
            self._known, self._said_at = known, self._clock()
            which = "" if name == GENERATOR else f"{name}: "
            self._say(f"{which}{found}{f': {failure}' if failure else ''}")


def _failure(message: str) -> str:
    """What a replica failed of and, of an error that is not ours, where."""
    failure, where = last_line(message), place(message)
    return failure if not where or failure.startswith(_OURS) else f"{failure} ({where})"
