"""Tensor parallelism: several devices for one model. Every process (rank) has a part of every layer.

Rank 0, the driver, is the process that has the engine. It starts the workers. For each forward it sends them the rows,
and they compute their part of the same layers. All ranks are on one machine.
"""

from service.parallel.executor import TensorParallelExecutor

__all__ = ["TensorParallelExecutor"]
