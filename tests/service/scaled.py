"""`python -m tests.service.scaled serve …`: `mrp-serve`, but it also runs services that scale, as clusters do."""

from typing import Any

from service.cli import cluster, preflight
from service.cli.main import main

_deploy = cluster.deploy


def deploy(*arguments: Any, **options: Any) -> None:
    from service import app  # imports Ray, which reads the variables that `cluster` has set

    app.UPSCALE_DELAY_S, app.DOWNSCALE_DELAY_S = 0.0, 2.0
    _deploy(*arguments, **options)


if __name__ == "__main__":
    preflight._check_settings = lambda settings: None
    cluster.deploy = deploy
    main()
