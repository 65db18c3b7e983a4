"""The state of a deployment as Serve's controller reports it, in one line."""

import re
from typing import Any

from service.rayserve.trouble import trouble

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_QUALIFIED = re.compile(r"^(?:\w+\.)+(?=\w+(?:: |$))")
_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)
#: characters of a line that is no exception; Ray tells 700 about a process that has ended
_LONGEST = 200
#: Ray's own error when a replica's process has ended
_LOST = "ActorDiedError"
#: Serve's message after 30 s in a constructor. Loading a large checkpoint takes longer, so it is no failure.
SLOW = re.compile(r"have taken more than \d+s to initialize")


def is_scaled_to_zero(deployment: Any) -> bool:
    """Whether a deployment without an answering replica is scaled to zero on purpose, or starts its first one."""
    return deployment.status in {"HEALTHY", "UPSCALING", "DOWNSCALING"}


def describe(deployment: Any, silence: str = "") -> str:
    """One line on a deployment without an answering replica. `silence`: why a replica did not answer."""
    state = "given up" if deployment.status == "DEPLOY_FAILED" else "loading"
    failure = last_line(deployment.message)
    failure = ": ".join(part for part in (trouble(), failure) if part)
    count = counted(deployment)
    if silence and not count.startswith("0 "):
        count += f", but one {silence}"
    return f"no replica can generate: {state}, {count}{f': {failure}' if failure else ''}"


def describe_application(application: Any) -> str:
    """One line on an application whose deployments Serve does not show. None: it is unknown.

    Serve shows none while it builds a new configuration, and after one that it could not build.
    """
    if application is None:
        return "no replica can generate: Serve has no such application"
    state, failure = str(getattr(application.status, "value", application.status)), last_line(application.message)
    return f"no replica can generate: the application is {state}{f': {failure}' if failure else ''}"


def counted(deployment: Any) -> str:
    """The number of running replicas, and the states of the others. Stopping replicas do not count in the total."""
    states = {str(getattr(state, "value", state)).lower(): count for state, count in deployment.replica_states.items()}
    rest = ", ".join(f"{count} {state}" for state, count in states.items() if count and state != "running")
    wanted = sum(count for state, count in states.items() if state != "stopping")
    return f"{states.get('running', 0)} of {wanted} replicas run{f' ({rest})' if rest else ''}"


def last_line(message: str) -> str:
    """The first line of the exception at the end of a traceback, without the exception's module.

    For a message without a traceback: its last line. Of Ray's long guesses only the first sentences are left.
    """
    if SLOW.search(message):
        return ""
    plain = _COLOUR.sub("", message)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    if raised := _raised(plain):
        return raised[0]
    last = _QUALIFIED.sub("", lines[-1]) if lines else ""
    return last if len(last) <= _LONGEST else f"{last[:_LONGEST].rpartition('. ')[0] or last[: _LONGEST - 1]}."


def raised_at(message: str) -> str:
    """File and line where the exception at the end of a traceback was raised. Empty without a traceback."""
    frames = list(_FRAME.finditer(message))
    return f"{frames[-1][1]}:{frames[-1][2]}" if frames and _raised(_COLOUR.sub("", message)) else ""


def _raised(message: str) -> list[str]:
    """The lines of the exception at the end of a traceback. Empty if Ray lost the process."""
    frames = list(_FRAME.finditer(message))
    tail = message[frames[-1].end() :].splitlines()[1:] if frames else []
    # The exception follows the last frame's source, which is indented. Torch's exceptions end with lines of advice.
    lines = [_QUALIFIED.sub("", line.strip()) for line in tail if line[:1].strip()]
    return [] if lines and lines[0].startswith(_LOST) else lines
