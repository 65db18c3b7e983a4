"""`python -m benchmarks.gpu correctness|paper|speed|peers`: one stage, its rows in a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from benchmarks.gpu.correctness import check_device
from benchmarks.gpu.paper import measure_paper
from benchmarks.gpu.peers import measure_peers
from benchmarks.gpu.rows import Extent, Rows
from benchmarks.gpu.speed import measure_speed
from benchmarks.shapes import SHAPES
from service.errors import SettingsError
from service.model.device import pick_device, pick_dtype

_STAGES = {"paper": measure_paper, "speed": measure_speed, "peers": measure_peers}


def main(words: list[str] | None = None) -> int:
    """The exit status: 0 if nothing was wrong."""
    options = _parser().parse_args(words)
    try:
        device = torch.device(pick_device(options.device))
    except SettingsError as error:
        print(f"gpu: {error}", file=sys.stderr)  # noqa: T201
        return 1
    dtype = pick_dtype(options.dtype, str(device))
    with Rows(options.out / f"gpu-{options.stage}.jsonl", device, options.seconds) as rows:
        if options.stage == "correctness":
            return 0 if check_device(rows, device, options.golden, options.requests) else 1
        extent = Extent(
            options.shapes,
            options.concurrency,
            options.rows,
            options.context,
            options.rounds,
            options.new_tokens,
            options.block_sizes,
            options.torch_profiler_dir,
        )
        _STAGES[options.stage](rows, device, dtype, extent)
    return 0


def _parser() -> argparse.ArgumentParser:
    usual = Extent()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("stage", choices=("correctness", *_STAGES))
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder of the rows")
    parser.add_argument("--seconds", type=float, default=510, help="nothing new is begun after this time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--golden", type=Path, default=Path("tests/golden"), help="checkpoints with expected decodes")
    parser.add_argument("--requests", type=int, default=64, help="of each comparison without expectations")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(usual.shapes))
    parser.add_argument("--concurrency", nargs="+", type=int, default=list(usual.concurrencies))
    parser.add_argument("--rows", nargs="+", type=int, default=list(usual.rows), help="of a step")
    parser.add_argument("--context", type=int, default=usual.context, help="tokens before the rows of a step")
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--new-tokens", type=int, default=usual.new_tokens, help="of an answer, at most")
    parser.add_argument(
        "--block-sizes", nargs="+", type=int, default=list(usual.block_sizes), help="of the paper's rows"
    )
    parser.add_argument("--torch-profiler-dir", type=Path, help="folder for traces of the paper's rows")
    return parser


if __name__ == "__main__":
    sys.exit(main())
