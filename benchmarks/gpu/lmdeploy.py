"""`python -m benchmarks.gpu.lmdeploy`: tokens a second of LMDeploy's PyTorch engine on a folder of SDAR's weights.

A process of its own for `peers.py`, since LMDeploy's tasks keep a process. It prints one JSON object a line. The engine
is driven as by LMDeploy's own `benchmark/profile_throughput.py`: prompts are token ids, there is no text and no server,
CUDA graphs are on. It ran on an H100 with LMDeploy 0.18, whose names are used here. Needs nothing of the service.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

#: fields that LMDeploy 0.18 reads from the config of an `sdar` model and that transformers 5's generic config lacks
_NEEDED = {
    "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
    "bos_token_id": 151643, "eos_token_id": 151643, "pad_token_id": None,
    "sliding_window": None, "use_sliding_window": False, "rope_scaling": None, "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "use_cache": True, "torch_dtype": "bfloat16",
}  # fmt: skip
#: written into LMDeploy's configurations/sdar.py
_MASK = 151669
#: tokens of a prompt, each from this range
_PROMPT_TOKENS, _TOKENS = 64, range(1000, 151000)
#: seconds of a round, at most
_ROUND_LIMIT = 120


def dressed(folder: Path) -> Path:
    """A folder of links to the weights, with the config fields and the tokenizer that LMDeploy wants."""
    view = folder / "lmdeploy"
    files = [file for file in folder.iterdir() if file.suffix in {".safetensors", ".json"}]
    view.mkdir()
    for file in files:
        if file.name != "config.json":
            (view / file.name).symlink_to(file.resolve())
    raw = json.loads((folder / "config.json").read_text("utf-8"))
    raw = {**_NEEDED, **{name: value for name, value in raw.items() if value is not None or name not in _NEEDED}}
    if raw.get("mask_token_id", _MASK) != _MASK or raw["vocab_size"] <= _MASK:
        _say(note=f"LMDeploy masks with {_MASK}, this model has {raw.get('mask_token_id')} of {raw['vocab_size']}")
    theta, scaling = raw.pop("rope_theta"), raw.pop("rope_scaling")  # transformers 5 keeps both in rope_parameters
    raw["rope_parameters"] = {"rope_type": "default", **(scaling or {}), "rope_theta": theta}
    (view / "config.json").write_text(json.dumps(raw, indent=1), "utf-8")
    if not (view / "tokenizer.json").exists():
        _write_tokenizer(view)
    return view


def _write_tokenizer(view: Path) -> None:
    """A tokenizer of 512 words: no text is encoded."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {"<unk>": 0, "<|endoftext|>": 1} | {f"w{index}": index for index in range(2, 512)}
    Tokenizer(WordLevel(words, unk_token="<unk>")).save(str(view / "tokenizer.json"))  # noqa: S106 - no password
    names = {"unk_token": "<unk>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (view / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | names), "utf-8"
    )


def _engine_of(view: Path, block_size: int, concurrency: list[int]) -> Any:
    """LMDeploy's defaults are the dynamic rule and float16. Its sizes of graphs are the asked ones."""
    from lmdeploy import PytorchEngineConfig  # type: ignore[import-not-found]  # `bring_lmdeploy.sh` brings it
    from lmdeploy.pytorch.engine import Engine  # type: ignore[import-not-found]

    config = PytorchEngineConfig(
        dtype="bfloat16", session_len=1024, max_batch_size=max(concurrency),
        cache_max_entry_count=0.8, block_size=64, eager_mode=False,
        cudagraph_capture_batch_sizes=sorted(set(concurrency)),
        max_prefill_token_num=8192, enable_prefix_caching=False, enable_metrics=False,
        distributed_executor_backend="uni", dllm_block_length=block_size,
        dllm_unmasking_strategy="low_confidence_static", dllm_denoising_steps=block_size,
        dllm_confidence_threshold=0.9,
    )  # fmt: skip
    return Engine.from_pretrained(str(view), engine_config=config, trust_remote_code=False)


class _Rounds:
    """Rounds of so many requests at once; counts tokens and forwards."""

    def __init__(self, engine: Any, new_tokens: int) -> None:
        self._engine, self._new_tokens, self._session = engine, new_tokens, 0
        self._random = random.Random(0)
        self._forwards = 0
        agent = engine.executor.model_agent
        inner = agent._async_model_forward  # noqa: SLF001 - LMDeploy counts no forwards

        async def counted(*arguments: Any, **named: Any) -> Any:
            self._forwards += 1
            return await inner(*arguments, **named)

        agent._async_model_forward = counted  # noqa: SLF001

    async def round(self, count: int) -> dict[str, Any]:
        """Random prompts; all answers have all new tokens."""
        prompts = [self._random.choices(_TOKENS, k=_PROMPT_TOKENS) for _ in range(count)]
        instances = [self._engine.create_instance() for _ in range(count)]
        sessions = [self._session + 1 + index for index in range(count)]
        self._session += count
        self._forwards = 0
        begin = time.perf_counter()
        answers = await asyncio.wait_for(
            asyncio.gather(*(self._answer(*each) for each in zip(instances, sessions, prompts, strict=True))),
            timeout=_ROUND_LIMIT,
        )
        seconds = time.perf_counter() - begin
        tokens = sum(len(tokens) for tokens, _ in answers)
        statuses = sorted({status for _, status in answers})
        return {"concurrency": count, "tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds,
                "forwards": self._forwards, "statuses": statuses}  # fmt: skip

    async def _answer(self, instance: Any, session: int, prompt: list[int]) -> tuple[list[int], str]:
        from lmdeploy import GenerationConfig

        options = GenerationConfig(max_new_tokens=self._new_tokens, ignore_eos=True, do_sample=False, top_k=1,
                                   top_p=1.0, temperature=1.0, random_seed=session)  # fmt: skip
        tokens, status = list[int](), "none"
        async for output in instance.async_stream_infer(session, input_ids=prompt, gen_config=options):
            tokens, status = [*tokens, *output.token_ids], output.status.name
        return tokens, status


async def _measure(engine: Any, options: argparse.Namespace) -> None:
    """The better of two rounds after one to warm up, at each load."""
    engine.start()
    rounds = _Rounds(engine, options.new_tokens)
    for count in options.concurrency:
        try:
            warm = await rounds.round(count)
            best = max([await rounds.round(count) for _ in range(2)], key=lambda row: row["tokens_per_s"])
            _say(**best, warm_up_s=warm["seconds"])
        except Exception:  # noqa: BLE001 - the next load may work
            _say(concurrency=count, error=traceback.format_exc(limit=-6))


def _say(**row: Any) -> None:
    print(json.dumps(row), flush=True)  # noqa: T201


def _end(seconds: float) -> None:
    _say(error=f"{seconds} s are over")
    os._exit(3)


def main() -> None:
    """Ends the process: LMDeploy's tasks and threads would keep it."""
    options = _parser().parse_args()
    timer = threading.Timer(options.seconds, _end, [options.seconds])
    timer.daemon = True
    timer.start()
    os.environ["LMDEPLOY_ENABLE_CHECK_ENV"] = "0"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    status = 1
    try:
        import lmdeploy
        import torch
        from lmdeploy.utils import get_logger  # type: ignore[import-not-found]

        get_logger("lmdeploy").setLevel("WARNING")
        begin = time.perf_counter()
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        engine = _engine_of(dressed(options.folder), options.block_size, options.concurrency)
        _say(started=f"lmdeploy {lmdeploy.__version__}", seconds=time.perf_counter() - begin, torch=torch.__version__,
             pages=engine.cache_config.num_gpu_blocks, dtype=str(engine.model_config.dtype))  # fmt: skip
        loop.run_until_complete(_measure(engine, options))
        status = 0
    except BaseException:  # noqa: BLE001 - the process must end, and say why
        _say(error=traceback.format_exc(limit=-6))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.lmdeploy", description=__doc__)
    parser.add_argument("folder", type=Path, help="config.json and weights")
    parser.add_argument("--block-size", type=int, default=4)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=100, help="the process ends after this time")
    return parser


if __name__ == "__main__":
    main()
