"""How pytest-xdist deals tests out: all that start Ray go to one worker, in their order, the others one by one.

(`--dist loadgroup` would do the same with pytest before 9.2; xdist 3.8 marks groups in a field that is gone.)
"""

from typing import Any

import pytest

#: where tests that start Ray live; tests/conftest.py refuses the mark `ray` elsewhere
RAY = ("tests/service/", "tests/training/test_workers.py", "tests/deploy/test_cluster.py", "tests/deploy/test_image.py")

#: files whose tests share an engine's process, a browser or a library that takes seconds: one worker runs all of a file
SHARED = (
    "tests/gateway/generate/test_engine_process.py",
    "tests/gateway/anthropic/test_anthropic_client.py",
    "tests/benchmarks/test_plain_loop.py",
    "tests/playground/test_page.py",
)


def one_worker_for_ray(config: pytest.Config, log: Any) -> Any:
    """A scheduler. Ray's processes need the cores by themselves, and two clusters would disturb each other."""
    from xdist.scheduler import LoadScopeScheduling

    class OneWorkerForRay(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "ray" if nodeid.startswith(RAY) else file if file in SHARED else nodeid

    return OneWorkerForRay(config, log)
