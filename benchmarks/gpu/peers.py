"""Stage 3. The engine and, where it is installed, LMDeploy, on the same random weights in blocks of 4, `static`.

LMDeploy decodes SDAR (docs/comparison.md). `bring_lmdeploy.sh` brings it to a machine without a network.
`python -m benchmarks.speed` has the engine beside transformers.
"""

import gc
import json
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.gpu.rows import GPU_SHAPES, Extent, Rows
from benchmarks.shapes import random_checkpoint
from benchmarks.throughput import RandomWorkload, engine_rate
from service.decode.modes import Static
from service.engine import Engine, EngineConfig
from service.model import LoadOptions, save_checkpoint

_BLOCK_SIZE, _PROMPT_TOKENS = 4, 64
#: of SDAR's published config.json files, beside the sizes
_RAW: dict[str, Any] = {
    "model_type": "sdar", "architectures": ["SDARForCausalLM"], "mask_token_id": 151669, "block_size": _BLOCK_SIZE,
    "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "eos_token_id": 151643,
}  # fmt: skip


def measure_peers(rows: Rows, device: torch.device, dtype: torch.dtype, extent: Extent) -> None:
    """For each shape and load the tokens a second of the engine, then of LMDeploy."""
    options = LoadOptions(dtype, str(device))
    for shape in extent.shapes:
        rows.part(f"peers of {shape}", partial(_peers, rows, shape, options, extent))


def _peers(rows: Rows, shape: str, options: LoadOptions, extent: Extent) -> None:
    installed = find_spec("lmdeploy") is not None
    with TemporaryDirectory() as folder:
        _engine(rows, shape, options, extent, Path(folder) if installed else None)
        gc.collect()
        torch.cuda.empty_cache()
        if not installed:
            rows.write("left out: not installed", of="lmdeploy")
        elif not rows.over(f"lmdeploy with {shape}"):
            _lmdeploy(rows, shape, extent, Path(folder))


def _engine(rows: Rows, shape: str, options: LoadOptions, extent: Extent, folder: Path | None) -> None:
    checkpoint = random_checkpoint({**_RAW, **asdict(GPU_SHAPES[shape])}, options)
    workload = RandomWorkload(Static(), (_PROMPT_TOKENS, _PROMPT_TOKENS), extent.new_tokens)
    for count in extent.concurrency:
        if rows.over(f"engine with {shape}, {count} together"):
            break
        tokens = count * workload.longest(_BLOCK_SIZE)
        config = EngineConfig(count, max_rows=max(256, 2 * count), kv_cache_tokens=tokens, prefix_cache=False)
        engine = Engine(checkpoint, config)
        rates = [engine_rate(engine, workload.requests(engine, count, number)) for number in range(extent.rounds + 1)]
        rows.write("engine", shape=shape, concurrency=count, tokens_per_s=max(rates[1:]), every=rates)
        del engine
    if folder is not None:
        save_checkpoint(folder, checkpoint.raw, checkpoint.backbone, None)


def _lmdeploy(rows: Rows, shape: str, extent: Extent, folder: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu.lmdeploy", str(folder), "--block-size", str(_BLOCK_SIZE)]
    command += ["--new-tokens", str(extent.new_tokens), "--seconds", str(rows.seconds_left)]
    command += ["--concurrency", *map(str, extent.concurrency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - this program
        for line in process.stdout or ():
            if line.startswith("{"):  # LMDeploy prints, too
                row = json.loads(line)
                rows.failed |= "error" in row
                rows.write("lmdeploy", shape=shape, **row)
    if process.returncode:
        rows.failed = True
        rows.write("lmdeploy", shape=shape, error=f"exit status {process.returncode}")
