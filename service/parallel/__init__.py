"""Several devices for one model: a team of processes, each with a part of every layer (tensor parallelism).

Rank 0 is the process that has the engine. It starts the others, which only follow: for each forward they are told its
rows, and compute their part of the same layers. All is on one machine.

What needs torch is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.parallel.team import Team
else:

    def __getattr__(name: str) -> type:
        if name != "Team":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("service.parallel.team").Team


__all__ = ["Team"]
