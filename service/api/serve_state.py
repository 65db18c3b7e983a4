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
    """Whether a deployment that may have no replicas, and of which none answers, has none because none is wanted.

    Or not yet again, up to the moment in which Serve counts the first one and routers do not know it. Not while it is
    deployed, nor once Serve knows that a replica was lost or does not start.
    """
    deployment = serve.status().applications[app_name].deployments[deployment_name]
    return deployment.status in {"HEALTHY", "UPSCALING", "DOWNSCALING"}


def describe(deployment: Any) -> str:
    """A deployment without a replica that answers."""
    states = {str(getattr(state, "value", state)).lower(): count for state, count in deployment.replica_states.items()}
    others = ", ".join(f"{count} {state}" for state, count in states.items() if count and state != "running")
    found = f"{states.get('running', 0)} of {sum(states.values())} replicas run{f' ({others})' if others else ''}"
    failure = last_line(deployment.message)
    state = "given up" if deployment.status == "DEPLOY_FAILED" else "loading"
    return f"no replica can generate: {state}, {found}{f': {failure}' if failure else ''}"


def last_line(message: str) -> str:
    """The exception at the end of a traceback, without its module; a message that has none as it is."""
    lines = [line.strip() for line in _COLOUR.sub("", message).splitlines() if line.strip()]
    return _QUALIFIED.sub("", lines[-1]) if lines else ""
