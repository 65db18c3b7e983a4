"""Waits until a service answers requests. Reports changes of its state, and raises an error if it cannot serve.

Serve's word that its replicas run is not enough: GET /health at the service's own port must be 200.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from ray import serve

from service.cli.own_port import OwnPort
from service.errors import SettingsError
from service.rayserve.scaling import GENERATOR
from service.rayserve.serve_state import counted, last_line, raised_at
from service.rayserve.trouble import trouble

#: prints a line for the user
Say = Callable[[str], None]

#: seconds between two queries of the status; a query takes 40 ms of CPU time, which the replica needs
_POLL_S = 0.5
#: seconds without a line after which a status without a failure is reported
_QUIET_S = 10.0
#: seconds that a service whose replicas run may take to answer before this is reported, and between two such lines
_ANSWER_S = 3.0
#: our errors that every further try would repeat, since the checkpoint or setting stays the same
_OURS = ("CheckpointError", "SettingsError")
#: Serve's messages about further and failed tries
TRIES_LEFT = re.compile(r"Retrying (\d+) more time")
FAILED_STARTS = re.compile(r"failed to start (\d+) times in a row")


def wait_until_ready(application: str, port: OwnPort, say: Say) -> None:
    """Returns when the application answers at its port. SettingsError, with the failure of a replica, if it cannot."""
    news = News(say, time.monotonic)
    while True:
        seen = serve.status().applications.get(application)  # none while Serve's controller begins anew
        if seen is not None:
            refuse(seen)
        if seen is None or seen.status != "RUNNING":
            news.look({} if seen is None else seen.deployments)
        elif reason := port.unhealthy():
            news.runs_without_answer(reason)
        else:
            return
        time.sleep(_POLL_S)


def refuse(seen: Any) -> None:
    """SettingsError if the application will never serve."""
    for deployment in seen.deployments.values():
        if deployment.status == "DEPLOY_FAILED" or last_line(deployment.message).startswith(_OURS):
            tries = FAILED_STARTS.search(deployment.message)
            reason = _failure(deployment.message) + (f", {tries[1]} times in a row" if tries else "")
            raise SettingsError(f"the service did not start: {reason}")
    if seen.status == "DEPLOY_FAILED":
        raise SettingsError(f"the service did not start: {last_line(seen.message)}")


class News:
    """Reports changes of deployments: a failure at once, other changes after a while without a line."""

    def __init__(self, say: Say, clock: Callable[[], float]) -> None:
        self._say, self._clock = say, clock
        self._report = ("", "")
        self._said_at = clock()
        self._runs_since: float | None = None

    def look(self, deployments: Mapping[str, Any]) -> None:
        waiting = [item for item in deployments.items() if item[1].status != "HEALTHY"]
        if not waiting:
            return
        name, deployment = max(waiting, key=lambda item: bool(_failure(item[1].message)))
        failure = _failure(deployment.message) or trouble()
        if tries := TRIES_LEFT.search(deployment.message):
            failure += f"; {tries[1]} more tries"
        count = counted(deployment)
        report = (count.split()[0], failure)  # the number of running replicas, without the states of the others
        quiet = self._clock() - self._said_at >= _QUIET_S
        if report != self._report and (quiet or failure not in ("", self._report[1])):
            self._report, self._said_at = report, self._clock()
            which = "" if name == GENERATOR else f"{name}: "
            self._say(f"{which}{count}{f': {failure}' if failure else ''}")

    def runs_without_answer(self, reason: str) -> None:
        """Reports why a service whose replicas run does not answer, and changes, after a short while."""
        now = self._clock()
        if self._runs_since is None:
            self._runs_since = now
        if reason != self._report[1] and now - max(self._runs_since, self._said_at) >= _ANSWER_S:
            self._report, self._said_at = ("", reason), now
            self._say(f"waiting for the first answer: {reason}")


def _failure(message: str) -> str:
    """The failure of a replica. For an error that is not ours, also its file and line."""
    failure, where = last_line(message), raised_at(message)
    return failure if not where or failure.startswith(_OURS) else f"{failure} ({where})"
