"""`python -m tests.service.program serve …`: `mrp-serve`, but its replicas decode at the pace that a test sets.

Serve calls a replica hung that is silent for 6 s instead of 18.
"""

from collections.abc import Callable

from service.cli import cluster
from service.cli.main import main
from service.settings.settings import Settings

_HANGS_S = 2.0
_begin = cluster.begin


def begin(settings: Settings, say: Callable[[str], None]) -> None:
    """What is changed imports Ray, which reads the environment that `begin` has made.

    Ray is told of enough CPUs for all ranks, however few there are.
    """
    ranks = settings.num_replicas * settings.tensor_parallel_size
    _begin(settings, say, ranks if settings.tensor_parallel_size > 1 else None)
    from service import app
    from tests.service.paced import PacedGenerator

    app.GeneratorDeployment = PacedGenerator  # type: ignore[misc]
    app.HANGS_S = _HANGS_S


if __name__ == "__main__":
    cluster.begin = begin
    main()
