"""What Serve's controller says of a deployment, in one line. Knows no requests."""

from __future__ import annotations

import re
from typing import Any

from ray import serve

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_QUALIFIED = re.compile(r"^(?:\w+\.)+(?=\w+: )")


def why_none(app_name: str, deployment_name: str) -> str:
    """Why no replica can generate: how many there are in which state, and what the last one failed of."""
    deployment = serve.status().applications[app_name].deployments[deployment_name]
    return describe(deployment)


def is_asleep(app_name: str, deployment_name: str) -> bool:
    """Whether a deployment that may have no replicas has none because none is wanted, or not yet again.

    Not while it is deployed, nor when a replica was lost or does not start.
    """
    deployment = serve.status().applications[app_name].deployments[deployment_name]
    return deployment.status in {"HEALTHY", "UPSCALING", "DOWNSCALING"} and not _states(deployment).get("running")


def describe(deployment: Any) -> str:
    """A deployment without a replica that answers."""
    states = _states(deployment)
    others = ", ".join(f"{count} {state}" for state, count in states.items() if count and state != "running")
    found = f"{states.get('running', 0)} of {sum(states.values())} replicas run{f' ({others})' if others else ''}"
    failure = last_line(deployment.message)
    state = "given up" if deployment.status == "DEPLOY_FAILED" else "loading"
    return f"no replica can generate: {state}, {found}{f': {failure}' if failure else ''}"


def _states(deployment: Any) -> dict[str, int]:
    """How many replicas are in which state."""
    return {str(getattr(state, "value", state)).lower(): count for state, count in deployment.replica_states.items()}


def last_line(message: str) -> str:
    """The exception at the end of a traceback, without its module; a message that has none as it is."""
    lines = [line.strip() for line in _COLOUR.sub("", message).splitlines() if line.strip()]
    return _QUALIFIED.sub("", lines[-1]) if lines else ""
