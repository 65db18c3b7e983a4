"""Stage 4. The engine beside a plain transformers loop and, where it is installed, LMDeploy, on the same weights."""

from __future__ import annotations

import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.gpu.rows import Extent, Rows
from benchmarks.plain_loop import PlainLoop
from benchmarks.shapes import SHAPES, random_checkpoint
from benchmarks.throughput import RandomWorkload, Rounds, compare_with_plain_loop
from service.decode.modes import Static
from service.engine import Engine, EngineConfig, GenerationRequest
from service.model import Checkpoint, LoadOptions, save_checkpoint

#: of SDAR's published config.json files, beside the sizes
_RAW = {"model_type": "sdar", "architectures": ["SDARForCausalLM"], "mask_token_id": 151669, "block_size": 4}
_RAW |= {"rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "eos_token_id": 151643}


def measure_peers(rows: Rows, device: torch.device, dtype: torch.dtype, extent: Extent) -> None:
    """Random weights of the first shape, `static`. Tokens a second, interleaved where both run in this process."""
    shape, concurrencies, rounds = extent.shapes[0], extent.concurrencies, extent.rounds
    checkpoint = random_checkpoint({**_RAW, **asdict(SHAPES[shape])}, LoadOptions(dtype, str(device)))
    workload = RandomWorkload(Static())
    tokens = max(concurrencies) * workload.longest(checkpoint.config.block_size)
    engine = Engine(checkpoint, EngineConfig(max_running=max(concurrencies), kv_cache_tokens=tokens))
    for row in compare_with_plain_loop(engine, PlainLoop(checkpoint), workload, Rounds(concurrencies, rounds)):
        rows.write("engine beside plain loop", shape=shape, **asdict(row))
        if rows.over("more requests"):
            return
    requests = {count: workload.requests(engine, count, 0) for count in concurrencies}
    del engine
    if find_spec("lmdeploy") is None:
        rows.write("left out: not installed", of="lmdeploy")
    elif not rows.over("lmdeploy"):
        _lmdeploy(rows, shape, checkpoint, requests)


def _lmdeploy(rows: Rows, shape: str, checkpoint: Checkpoint, requests: dict[int, list[GenerationRequest]]) -> None:
    """LMDeploy's PyTorch engine, which decodes SDAR (docs/comparison.md), on the same weights and prompts."""
    import lmdeploy  # type: ignore[import-not-found]  # by hand where it is wanted

    with TemporaryDirectory() as folder:
        save_checkpoint(Path(folder), checkpoint.raw, checkpoint.backbone, None)
        config = lmdeploy.PytorchEngineConfig(dllm_block_length=checkpoint.config.block_size)
        pipeline: Any = lmdeploy.pipeline(folder, backend_config=config)
        for count, batch in requests.items():
            if rows.over(f"lmdeploy, {count} together"):
                return
            options = lmdeploy.GenerationConfig(max_new_tokens=batch[0].max_new_tokens, ignore_eos=True)
            begin = time.perf_counter()
            answers = pipeline([list(request.prompt_token_ids) for request in batch], gen_config=options)
            seconds = time.perf_counter() - begin
            tokens = sum(len(answer.token_ids) for answer in answers)
            rows.write("lmdeploy", shape=shape, concurrency=count, tokens_per_s=tokens / seconds)
