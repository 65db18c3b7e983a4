"""The cost of a step by the shape of a small demo, with random weights: `python -m dev.lab.shapes`.

Least thread CPU milliseconds, one thread, of a forward of the backbone over r states of one block behind 48 tokens, as
`speculative` verifies them, of one MRP forward, and of a forward for 8 requests.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.shapes import random_checkpoint
from service.decode.block import MASKED, Block
from service.decode.policy import Prediction
from service.demo import CHECKPOINT
from service.engine.forward.model_forward import Network
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner
from service.engine.request import SamplingParams
from service.model import LoadOptions

#: layers, hidden, heads, key heads, size of a head, feed-forward, block, MRP's layers
SHAPES = (
    (4, 128, 4, 2, 32, 384, 16, 3),
    (12, 128, 4, 2, 32, 384, 8, 1),
    (16, 128, 4, 2, 32, 384, 8, 1),
    (16, 128, 4, 2, 32, 384, 4, 1),
    (20, 96, 3, 1, 32, 256, 8, 2),
    (24, 96, 3, 1, 32, 256, 8, 1),
    (28, 64, 2, 1, 32, 192, 4, 1),
    (28, 64, 2, 1, 32, 192, 8, 1),
    (28, 64, 2, 1, 32, 192, 8, 3),
    (28, 64, 2, 1, 32, 192, 16, 1),
)
_KEYS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
         "intermediate_size", "block_size", "num_nextn_predict_layers")  # fmt: skip
_PREFIX = 48


def run(runner: CheckpointRunner, network: Network, rows: list[Row]) -> list[Prediction]:
    """A forward, to its end."""
    return runner.begin(network, rows)()


def fastest(run: Callable[[], object], rounds: int = 60) -> float:
    """The least CPU time of a run, in milliseconds."""
    times = []
    for _ in range(rounds):
        begin = time.thread_time()
        run()
        times.append(time.thread_time() - begin)
    return 1e3 * min(times)


def main() -> None:
    """Prints a line for every shape."""
    torch.set_num_threads(1)
    raw = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    for shape in SHAPES:
        checkpoint = random_checkpoint({**raw, **dict(zip(_KEYS, shape, strict=True))}, LoadOptions())
        block = checkpoint.config.block_size
        runner, before = CheckpointRunner(checkpoint, 512), _PREFIX // block

        def row(token: int, first: int, block: int = block, before: int = before) -> Row:
            pages = list(range(first, first + before))
            state = Block((token, *(MASKED,) * (block - 1)))
            return Row(state, before, pages, writes_kv=False, sampling=SamplingParams())

        alone, pages = row(0, 0), row(0, 0).pages
        states = {n: [row(token, 0)._replace(pages=pages) for token in range(n)] for n in (1, 2, 3, 5, 9)}
        costs = [fastest(partial(run, runner, "backbone", rows)) for rows in states.values()]
        anchored = [alone._replace(anchor=run(runner, "backbone", [alone])[0].handle)]
        mrp = fastest(partial(run, runner, "mrp", anchored))
        together = fastest(partial(run, runner, "backbone", [row(0, index * before) for index in range(8)]))
        sys.stdout.write(f"{shape}  {' '.join(f'{cost:.2f}' for cost in costs)}  MRP {mrp:.2f}  8: {together:.2f}\n")


if __name__ == "__main__":
    main()
