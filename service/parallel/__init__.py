"""Several devices for one model: a team of processes, each with a part of every layer (tensor parallelism).

Rank 0, the driver, is the process that has the engine. It starts the workers. For each forward it sends them the rows,
and they compute their part of the same layers. All is on one machine.

Modules that need torch are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.parallel.executor import TensorParallelExecutor
else:

    def __getattr__(name: str) -> type:
        if name != "TensorParallelExecutor":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("service.parallel.executor").TensorParallelExecutor


__all__ = ["TensorParallelExecutor"]
