"""`python -m tests.service.program serve …`: `mrp-serve`, but its replicas decode at the pace that a test sets.

Serve calls a replica hung that is silent for 6 s instead of 18.
"""

from __future__ import annotations

from typing import Any

from service.cli import cluster
from service.cli.main import main

_HANGS_S = 2.0
_start = cluster.start


def start(*given: Any, **named: Any) -> None:
    """What is changed imports Ray, which reads the environment that `start` has made."""
    _start(*given, **named)
    from service import app
    from tests.service.paced import PacedGenerator

    app.GeneratorDeployment = PacedGenerator  # type: ignore[misc]
    app._HANGS_S = _HANGS_S


if __name__ == "__main__":
    cluster.start = start
    main()
