"""`python -m tests.service.program serve …`: `mrp-serve`, but its replicas decode at the pace that a test sets.

Serve calls a replica hung that is silent for 6 s instead of 18.
"""

from __future__ import annotations

from typing import Any

from service.cli import cluster
from service.cli.main import main

_HANGS_S = 2.0
_begin = cluster.begin


def begin(*given: Any, **named: Any) -> Any:
    """What is changed imports Ray, which reads the environment that `begin` has made."""
    proxy = _begin(*given, **named)
    from service import app
    from tests.service.paced import PacedGenerator

    app.GeneratorDeployment = PacedGenerator  # type: ignore[misc]
    app._HANGS_S = _HANGS_S
    return proxy


if __name__ == "__main__":
    cluster.begin = begin
    main()
