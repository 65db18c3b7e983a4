"""`python -m tests.service.learning serve …`: `mrp-serve`, whose MRP learns noise (`noise.py`)."""

from collections.abc import Callable

from service.cli import cluster
from service.cli.main import main
from service.settings.settings import Settings

_begin = cluster.begin


def begin(settings: Settings, say: Callable[[str], None]) -> None:
    """What is changed imports Ray, which reads the environment that `begin` has made.

    Ray is told of a CPU for each replica, however few there are.
    """
    _begin(settings, say, settings.num_replicas)
    from tests.service.noise import NoiseTrainer
    from training import deployment

    deployment.TrainerDeployment = NoiseTrainer  # type: ignore[misc]


if __name__ == "__main__":
    cluster.begin = begin
    main()
