"""What Serve's controller says of a deployment, in one line. Knows no requests."""

from __future__ import annotations

import re
from typing import Any

from ray import serve

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_QUALIFIED = re.compile(r"^(?:\w+\.)+(?=\w+(?:: |$))")
_FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)
#: what Ray raises itself when a replica's process has ended
_LOST = "ActorDiedError"
#: Serve says after 30 s that a constructor takes its time. A large checkpoint does, and nothing is wrong.
_SLOW = re.compile(r"have taken more than \d+s to initialize")


def why_none(app_name: str, deployment_name: str) -> str:
    """Why no replica can generate: how many there are in which state, and what the last one failed of."""
    deployment = serve.status().applications[app_name].deployments[deployment_name]
    return describe(deployment)


def is_asleep(app_name: str, deployment_name: str) -> bool:
    """Whether a deployment that may have no replicas, and of which none answers, has none because none is wanted.

    Or not yet again, up to the moment in which Serve counts the first one and routers do not know it. Not while it is
    deployed, nor once Serve knows that a replica was lost or does not start.
    """
    deployment = serve.status().applications[app_name].deployments[deployment_name]
    return deployment.status in {"HEALTHY", "UPSCALING", "DOWNSCALING"}


def describe(deployment: Any) -> str:
    """A deployment without a replica that answers."""
    state = "given up" if deployment.status == "DEPLOY_FAILED" else "loading"
    failure = last_line(deployment.message)
    return f"no replica can generate: {state}, {counted(deployment)}{f': {failure}' if failure else ''}"


def counted(deployment: Any) -> str:
    """How many replicas run, and what the others do. One that stops is not wanted: another takes its place."""
    states = {str(getattr(state, "value", state)).lower(): count for state, count in deployment.replica_states.items()}
    others = ", ".join(f"{count} {state}" for state, count in states.items() if count and state != "running")
    wanted = sum(count for state, count in states.items() if state != "stopping")
    return f"{states.get('running', 0)} of {wanted} replicas run{f' ({others})' if others else ''}"


def last_line(message: str) -> str:
    """The exception at the end of a traceback, its first line without its module; of another message the last line."""
    if _SLOW.search(message):
        return ""
    plain = _COLOUR.sub("", message)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return next(iter(_raised(plain)), _QUALIFIED.sub("", lines[-1]) if lines else "")


def place(message: str) -> str:
    """Where the exception at the end of a traceback was raised: file and line. Empty for a message without one."""
    frames = list(_FRAME.finditer(message))
    return f"{frames[-1][1]}:{frames[-1][2]}" if frames and _raised(_COLOUR.sub("", message)) else ""


def _raised(message: str) -> list[str]:
    """The lines of the exception at the end of a traceback. None where Ray lost the process: its last line says how."""
    frames = list(_FRAME.finditer(message))
    behind = message[frames[-1].end() :].splitlines()[1:] if frames else []
    # Behind the last frame's source, which is indented, comes the exception. Torch adds lines of advice to its own.
    lines = [_QUALIFIED.sub("", line.strip()) for line in behind if line[:1].strip()]
    return [] if lines and lines[0].startswith(_LOST) else lines
