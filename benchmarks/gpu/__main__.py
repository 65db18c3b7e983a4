"""`python -m benchmarks.gpu STAGE`: one stage, its rows in a file. It exits with 1 after an error."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

import torch

from benchmarks.gpu.correctness import check_device
from benchmarks.gpu.deterministic import measure_deterministic
from benchmarks.gpu.peers import measure_peers
from benchmarks.gpu.rows import GPU_SHAPES, Extent, Rows
from benchmarks.gpu.speed import measure_speed
from service.errors import SettingsError
from service.model.device import pick_device, pick_dtype


def main(words: list[str] | None = None) -> int:
    """The exit status: 0 if nothing was wrong."""
    options = _parser().parse_args(words)
    try:
        device = torch.device(pick_device(options.device))
    except SettingsError as error:
        print(f"gpu: {error}", file=sys.stderr)  # noqa: T201
        return 1
    dtype = pick_dtype(options.dtype, str(device))
    extent = Extent(**{field.name: getattr(options, field.name) for field in fields(Extent)})
    with Rows(options.out / f"gpu-{options.stage}.jsonl", device, options.seconds) as rows:
        if options.stage == "correctness":
            check_device(rows, device, options.golden, options.requests, options.processes, options.only)
        elif options.stage == "speed":
            measure_speed(rows, device, dtype, extent)
        elif options.stage == "peers":
            measure_peers(rows, device, dtype, extent)
        elif options.stage == "deterministic":
            measure_deterministic(rows, device, dtype, extent)
        else:
            from benchmarks.gpu.service import measure_service  # the others need fewer packages

            measure_service(rows, device, dtype, extent)
    return int(rows.failed)


def _parser() -> argparse.ArgumentParser:
    usual = Extent()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("stage", choices=("correctness", "speed", "peers", "deterministic", "service"))
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder of the rows")
    parser.add_argument("--seconds", type=float, default=300, help="nothing new is begun after this time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="auto")
    checks = parser.add_argument_group("correctness")
    checks.add_argument("--golden", type=Path, default=Path("tests/golden"), help="checkpoints with expected decodes")
    checks.add_argument("--requests", type=int, default=64, help="of each comparison without expectations")
    checks.add_argument("--processes", type=int, default=8, help="beside each other, each with a share of the checks")
    checks.add_argument("--only", default="", metavar="TEXT", help="checks whose name has this text")
    times = parser.add_argument_group("speed, peers, deterministic, service")
    times.add_argument("--shapes", nargs="+", choices=GPU_SHAPES, default=usual.shapes, help="the most wanted first")
    times.add_argument("--concurrency", nargs="+", type=int, default=usual.concurrency, help="requests at once")
    times.add_argument("--rows", nargs="+", type=int, default=usual.rows, help="of a step")
    times.add_argument("--context", type=int, default=usual.context, help="tokens before the rows of a step")
    times.add_argument("--rounds", type=int, default=usual.rounds)
    times.add_argument("--new-tokens", type=int, default=usual.new_tokens, help="of an answer, at most")
    times.add_argument("--block-sizes", nargs="+", type=int, default=usual.block_sizes, help="of the modes")
    times.add_argument("--together", type=int, default=usual.together, help="requests whose answers are compared")
    times.add_argument("--torch-profiler-dir", type=Path, help="folder for traces of the modes")
    times.add_argument("--model", type=Path, default=usual.model, help="the checkpoint that is inflated")
    users = parser.add_argument_group("service")
    users.add_argument("--plans", default=usual.plans, help="modes and qualities, as `loadtest.run --modes` has them")
    users.add_argument("--learn-s", type=float, default=usual.learn_s, help="the first seconds at a load")
    users.add_argument("--steady-s", type=float, default=usual.steady_s, help="the seconds after them")
    users.add_argument("--wait-s", type=float, default=usual.wait_s, help="for the start and for an answer, at most")
    users.add_argument("--flags", default=usual.flags, help="further flags of `mrp-serve serve`, in one text")
    return parser


if __name__ == "__main__":
    sys.exit(main())
