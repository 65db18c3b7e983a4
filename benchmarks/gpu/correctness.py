"""Stage 1, for each attention: golden decodes in float32, exactness of `speculative` in bfloat16, `deterministic`.

How a product is rounded may depend on the number of a forward's rows. So in bfloat16 `speculative` promises the tokens
of `static` only if the engine is `deterministic`. Rows without it, and rows of 8-bit weights, inform.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.rows import Rows
from benchmarks.gpu.shares import Check, run_checks
from service.decode.modes import Speculative, Static
from service.decode.registry import make_mode
from service.demo import CHECKPOINT
from service.engine import Engine, EngineConfig, GenerationRequest, SamplingParams
from service.model import Checkpoint, LoadOptions, load_checkpoint
from service.model.quantization.layers import (
    QuantizedExperts,
    QuantizedLinear,
    QuantizedTensor,
    quantize_activations,
    quantized,
)
from service.model.quantization.schemes import QUANT_SCHEMES, QuantScheme
from service.model.triton_support import has_triton

_KNOBS = ("tokens_per_step", "threshold", "mrp_steps")
#: the golden checkpoints' end token
_END = 510
_TEMPERATURES = (0.0, 0.7, 1.2)


def check_device(rows: Rows, device: torch.device, golden: Path, requests: int, processes: int, only: str) -> None:
    """A row for each check whose name has `only` in it: the numbers of right answers and of all answers.

    `golden`: the folder of checkpoints with expected decodes. `requests`: the number for each other comparison.
    `processes`: how many run beside each other.
    """
    run_checks(rows, partial(_checks, device, golden, requests, only), processes)


def _checks(device: torch.device, golden: Path, requests: int, only: str) -> list[Check]:
    return [check for check in _all_checks(device, golden, requests) if only in check.name]


def _all_checks(device: torch.device, golden: Path, requests: int) -> Iterator[Check]:
    for config in _backends(device):
        label = f"{config.attention}, graphs {config.cuda_graphs}, ahead {config.async_scheduling}"
        yield Check(
            f"demo alone = together bfloat16, deterministic, {label}", partial(_alone, device, config, requests)
        )
        for folder in sorted(golden.glob("sdar-*")):
            yield Check(f"golden {folder.name} float32, {label}", partial(_golden, folder, device, config))
        for deterministic in (False, True):
            yield Check(
                f"demo speculative = static bfloat16, deterministic {deterministic}, {label}",
                partial(_lossless, device, replace(config, deterministic=deterministic), requests),
                promised=deterministic,
            )
    if device.type == "cuda" and has_triton(device):
        for form in (None, *QUANT_SCHEMES.values()):
            name = form.name if form else "bfloat16"
            yield Check(f"a row's product alone = together, {name}", partial(_products_alone, device, form))
    for form in QUANT_SCHEMES.values():
        yield Check(f"product with {form.name} matrices", partial(_products, device, form))
        yield Check(f"products of experts with {form.name} matrices", partial(_experts, device, form))
        yield Check(
            f"demo speculative = static {form.name}",
            partial(_lossless, device, EngineConfig(), requests, form.name),
            promised=False,
        )


def _backends(device: torch.device) -> list[EngineConfig]:
    configs = [EngineConfig(attention="eager", cuda_graphs=False, async_scheduling=False)]
    if has_triton(device):
        configs += [EngineConfig(attention="triton", cuda_graphs=on, async_scheduling=False) for on in (False, True)]
        configs.append(EngineConfig(attention="triton", async_scheduling=True))
    return configs


def _golden(folder: Path, device: torch.device, config: EngineConfig) -> tuple[int, int]:
    engine = Engine(load_checkpoint(folder, LoadOptions(torch.float32, str(device))), config)
    cases = json.loads((folder / "expected.json").read_text("utf-8"))
    requests = [
        GenerationRequest(
            str(index),
            tuple(case["prompt_token_ids"]),
            make_mode(case["mode"], {knob: case[knob] for knob in _KNOBS if knob in case}),
            max_new_tokens=case["max_new_tokens"],
            stop_token_ids=frozenset({_END}),
        )
        for index, case in enumerate(cases)
    ]
    expected = [tuple(case["token_ids"]) for case in cases]
    alone = [engine.generate([request])[0].token_ids for request in requests]
    together = [completion.token_ids for completion in engine.generate(requests)]
    return _same(alone, expected) + _same(together, expected), 2 * len(cases)


def _products(device: torch.device, form: QuantScheme) -> tuple[int, int]:
    """Within 1 % of the largest number of the product in float64: few rows, many, and sizes that fill no tile."""
    shapes = [(1, 2048, 2048), (17, 2048, 6144), (256, 300, 70), (300, 1024, 512)]
    right = 0
    for rows, depth, width in shapes:
        weight = torch.randn(width, depth, device=device, dtype=torch.bfloat16)
        layer = QuantizedLinear(quantized(weight, form), form)
        x = torch.randn(rows, depth, device=device, dtype=torch.bfloat16)
        expected = _activations(x, form) @ layer.weight.double().T
        right += int(bool((layer(x).double() - expected).abs().max() <= 0.01 * expected.abs().max()))
    return right, len(shapes)


def _products_alone(device: torch.device, form: QuantScheme | None) -> tuple[int, int]:
    """The bits of one row's product and of 16 rows', beside those of 2,048 rows. Each number of rows has its tiles."""
    counts, right = [1, 16, 33, 64, 100, 128, 256, 300, 512, 1024], 0
    shapes = [(2048, 6144), (4096, 4096), (4096, 24576), (12288, 4096)]
    for depth, width in shapes:
        weight = torch.randn(width, depth, device=device, dtype=torch.bfloat16)
        rows = torch.randn(2048, depth, device=device, dtype=torch.bfloat16)
        layer = QuantizedLinear(quantized(weight, form), form) if form else partial(_wide_product, weight)
        together = layer(rows)
        right += sum(torch.equal(layer(rows[:count]), together[:count]) for count in counts)
    return right, len(shapes) * len(counts)


def _wide_product(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    from service.model.quantization import triton_matmul

    return triton_matmul.product(rows, weight)


def _experts(device: torch.device, form: QuantScheme) -> tuple[int, int]:
    """The same of rows that are sorted by expert: some experts have none, one has many."""
    shapes = [(5, 16, 2048, 1536), (90, 8, 768, 2048), (900, 4, 2048, 70)]
    right = 0
    for count, num_experts, depth, width in shapes:
        weight = torch.randn(num_experts * width, depth, device=device, dtype=torch.bfloat16)
        bits = (part.unflatten(0, (num_experts, width)) for part in quantized(weight, form))
        layer = QuantizedExperts(QuantizedTensor(*bits), form)
        x = torch.randn(count, depth, device=device, dtype=torch.bfloat16)
        experts = torch.randint(1, num_experts, (count,), device=device).sort().values
        ends = torch.searchsorted(experts, torch.arange(num_experts, device=device), right=True, out_int32=True)
        chosen = zip(experts.tolist(), _activations(x, form), strict=True)
        expected = torch.stack([layer.weight[expert].double() @ row for expert, row in chosen])
        right += int(bool((layer.grouped(x, ends).double() - expected).abs().max() <= 0.01 * expected.abs().max()))
    return right, len(shapes)


def _activations(x: torch.Tensor, form: QuantScheme) -> torch.Tensor:
    """The activations `[M, K]` of a product in float64, rounded to 8 bits.

    Their rounding alone moves results by about 1 %, so it is no error of a kernel.
    """
    values, scales = quantize_activations(x, form)
    return values.view(getattr(torch, form.dtype)).double() * scales.double()


def _lossless(
    device: torch.device, config: EngineConfig, count: int, quantization: str | None = None
) -> tuple[int, int]:
    engine = Engine(_demo(device, quantization), config)
    static = _drawn(count)
    drafted = [replace(request, mode=Speculative(1 + int(request.request_id) % 4)) for request in static]
    expected = [completion.token_ids for completion in engine.generate(static)]
    return _same([completion.token_ids for completion in engine.generate(drafted)], expected), count


def _alone(device: torch.device, config: EngineConfig, count: int) -> tuple[int, int]:
    engine = Engine(_demo(device), replace(config, deterministic=True))
    requests = _drawn(count)
    alone = [engine.generate([request])[0].token_ids for request in requests]
    return _same([completion.token_ids for completion in engine.generate(requests)], alone), count


def _demo(device: torch.device, quantization: str | None = None) -> Checkpoint:
    return load_checkpoint(CHECKPOINT, LoadOptions(torch.bfloat16, str(device), quantization=quantization))


def _drawn(count: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            f"{seed}", (1, 40 + seed, 50, 2), Static(), SamplingParams(_TEMPERATURES[seed % 3], seed=seed), 64
        )
        for seed in range(count)
    ]


def _same(answers: Sequence[tuple[int, ...]], expected: Sequence[tuple[int, ...]]) -> int:
    return sum(answer == other for answer, other in zip(answers, expected, strict=True))
