"""The predicted time of a step of published shapes, from nodes and bytes that the virtual device counts.

    TRITON_INTERPRET=1 .venv/bin/python -m tests.vcuda.predicted dev/lab/results/predicted-steps.json

Nothing is measured. Matrix products and attention take their floor over a share of the device's rates. Every other
node of the graph takes a kernel's least time, or its bytes over the bandwidth. Sends and launches beside the graph take
the host's time. `BEST` and `WORST` are the assumed values; the first GPU replaces them.

`floor_ms` is by the data sheet. `reached_floor_ms` is by the rates that a card reaches: `benchmarks.speed` measures
them, and divides by that floor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.floor import forward_need
from benchmarks.machine import Rates
from benchmarks.predict import GPUS
from benchmarks.shapes import shape_named
from service.decode.block import MASKED, Block
from service.engine.forward import logits_sampler
from service.engine.forward.model_forward import ExecutionConfig
from service.engine.forward.rows import Row
from service.engine.forward.runner import CheckpointRunner
from service.engine.request import SamplingParams
from service.model import Checkpoint, family_named, parse_config
from tests.vcuda.device import Counts, Recording, VirtualDevice, VirtualTensor
from tests.vcuda.torch_cuda import virtual_cuda

SHAPES = ("sdar-1.7b", "sdar-4b", "sdar-8b", "sdar-30b-a3b")
BLOCKS, ROWS, CONTEXT = (4, 16), (1, 8, 32, 128), 1024
#: The shares of the data sheet's bandwidth and operations that a large copy and a large product reach, assumed.
_REACHED = 0.9, 0.8
#: nodes that the floor's phases price
_PRODUCTS = {"mm", "addmm", "bmm", "_grouped_mm"}
_ATTENTION = {"attend"}
#: nodes whose bytes are those of few rows or pages, not of their whole tensors
_SMALL = {"merge", "write_kv"}


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumed values: shares of the data sheet's rates, and seconds.

    `products`, `attention`, `moved`: shares of the bandwidth. `flops`: the share of the operations. `node`: the least
    time of a kernel in a graph. `launch`, `kernel`: the host's time of one of torch's and of Triton's kernels. `send`:
    of a copy to the device. `step`, `request`: of a step, and of each request in it. `pass_`: of a program of the
    sampler for a part of the vocabulary, and for the merge of all parts.
    """

    products: float
    attention: float
    moved: float
    flops: float
    node: float
    launch: float
    kernel: float
    send: float
    step: float
    request: float
    pass_: float = 1.1e-6


BEST = Assumed(0.88, 0.75, 0.8, 0.74, 2.0e-6, 4e-6, 15e-6, 11e-6, 100e-6, 25e-6)
WORST = Assumed(0.75, 0.5, 0.68, 0.62, 2.8e-6, 8e-6, 30e-6, 20e-6, 200e-6, 45e-6)


@dataclass(frozen=True, slots=True)
class Counted:
    """A forward of `rows` rows: the nodes of its graph with their bytes, and the launches and sends beside it."""

    rows: int
    graph: Recording
    beside: Counts


def published(shape: str, block_size: int) -> Checkpoint:
    """A checkpoint of a published shape in bfloat16, on the virtual device, without numbers and without MRP."""
    raw = {
        "model_type": "sdar", "mask_token_id": 151669, "eos_token_id": 151643, "block_size": block_size,
        "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, **asdict(shape_named(shape)),
    }  # fmt: skip
    config = parse_config(raw)
    with torch.device("meta"):
        backbone = family_named(config.family).network(config)
    for module in backbone.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(_on_device(weight), requires_grad=False))
        for name, table in list(module.named_buffers(recurse=False)):
            setattr(module, name, _on_device(table))
    return Checkpoint(Path("published"), config, raw, backbone, None)


def _on_device(tensor: torch.Tensor) -> VirtualTensor:
    return VirtualTensor(torch.empty(tensor.shape, dtype=torch.bfloat16, device="meta"))


def counted(device: VirtualDevice, checkpoint: Checkpoint, rows: tuple[int, ...]) -> Iterator[Counted]:
    """Forwards of masked rows behind `CONTEXT` tokens, each of its own request, warm."""
    size = checkpoint.config.block_size
    prefix = CONTEXT // size
    runner = CheckpointRunner(checkpoint, prefix * max(rows), execution=ExecutionConfig("triton"))
    state = Block((MASKED,) * size)
    for count in rows:
        forward = [
            Row(state, prefix, range(row * prefix, (row + 1) * prefix), writes_kv=False, sampling=SamplingParams())
            for row in range(count)
        ]
        runner.begin("backbone", forward)()
        device.counts = Counts()
        runner.begin("backbone", forward)()
        assert device.counts.replays == 1
        yield Counted(count, device.graphs[-1], device.counts)


def predicted_seconds(checkpoint: Checkpoint, forward: Counted, rates: Rates, assumed: Assumed) -> float:
    """The seconds of a step on a device, none of the host's time hidden."""
    config, beside = checkpoint.config, forward.beside
    need = forward_need(config, forward.rows, CONTEXT, 2)
    matrices = Rates(rates.bytes_per_s * assumed.products, rates.flops_per_s * assumed.flops)
    reads = Rates(rates.bytes_per_s * assumed.attention, rates.flops_per_s * assumed.flops)
    bandwidth = rates.bytes_per_s * assumed.moved
    seconds = need.products.seconds(matrices) + need.head.seconds(matrices) + need.attention.seconds(reads)
    for node in forward.graph.operations:
        if node.name in _PRODUCTS | _ATTENTION | _SMALL:
            seconds += assumed.node
        else:
            seconds += max(assumed.node, node.moved_bytes / bandwidth)
    tokens = forward.rows * config.block_size
    parts = -(-config.vocab_size // logits_sampler._KERNEL_PART)
    parts_of_program = -(-parts // logits_sampler._num_programs(tokens, parts))
    seconds += max((parts_of_program + 1) * assumed.pass_, 2 * tokens * config.vocab_size / bandwidth)
    host = beside.sends * assumed.send + beside.launches.total() * assumed.launch
    host += beside.kernels.total() * assumed.kernel + assumed.step + forward.rows * assumed.request
    return seconds + host


def predictions(
    shapes: tuple[str, ...] = SHAPES, block_sizes: tuple[int, ...] = BLOCKS, rows: tuple[int, ...] = ROWS
) -> Iterator[dict[str, Any]]:
    """A row for each shape, block size, number of rows and GPU. `nodes`: of the graph."""
    for shape in shapes:
        for block_size in block_sizes:
            with virtual_cuda(shapes_only=True, total_bytes=2**50) as device, torch.inference_mode():
                checkpoint = published(shape, block_size)
                for forward in counted(device, checkpoint, rows):
                    for gpu in ("h100", "h200"):
                        yield _row(shape, checkpoint, forward, gpu)


def _row(shape: str, checkpoint: Checkpoint, forward: Counted, gpu: str) -> dict[str, Any]:
    need = forward_need(checkpoint.config, forward.rows, CONTEXT, 2)
    floor, reached = need.seconds(GPUS[gpu]), need.seconds(_reached(GPUS[gpu]))
    best, worst = (predicted_seconds(checkpoint, forward, GPUS[gpu], assumed) for assumed in (BEST, WORST))
    return {
        "shape": shape,
        "block_size": checkpoint.config.block_size,
        "rows": forward.rows,
        "gpu": gpu,
        "nodes": len(forward.graph.operations),
        "launches": forward.beside.num_launches,
        "sends": forward.beside.sends,
        "floor_ms": round(1e3 * floor, 3),
        "reached_floor_ms": round(1e3 * reached, 3),
        "step_ms": [round(1e3 * best, 3), round(1e3 * worst, 3)],
        "step_over_floor": [round(best / floor, 2), round(worst / floor, 2)],
        "step_over_reached_floor": [round(best / reached, 2), round(worst / reached, 2)],
    }


def _reached(rates: Rates) -> Rates:
    return Rates(_REACHED[0] * rates.bytes_per_s, _REACHED[1] * rates.flops_per_s)


if __name__ == "__main__":
    lines = [json.dumps(row) for row in predictions()]
    Path(sys.argv[1]).write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
