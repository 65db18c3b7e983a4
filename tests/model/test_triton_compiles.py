"""Triton's kernels compile for NVIDIA GPUs, which needs none: the interpreter accepts what the compiler does not."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

def compiled(kernel, types, constants, capability, **options):
    types = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    aligned = {(n,): [["tt.divisibility", 16]] for n, name in enumerate(types) if types[name] != "constexpr"}
    values = {(n,): constants[name] for n, name in enumerate(types) if name in constants}
    source = ASTSource(kernel, types, values, aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
"""

ATTENTION = """
import triton.language as tl
from service.model.attention import triton_kernels as kernels
tables = dict.fromkeys(("items", "pages", "indices", "final_rows", "merges", "targets"), "*i32")
strides = dict.fromkeys(("q_stride", "k_stride", "v_stride"), "i32")
for capability, dtype, size, group, tile, step, warps in cases["attention"]:
    numbers = dict.fromkeys(("q", "k", "v", "out", "keys", "values"), "*" + dtype)
    types = numbers | tables | strides | {"part_out": "*fp32", "part_lse": "*fp32"}
    sizes = dict(KV_HEADS=8, D=128, D_PAD=128)
    fold = dict(GROUP=group, TILE=tile, ACC=tl.float32)
    walk = dict(L=size, KEYS=step, SCALE=0.1, WIDE=False)
    made = compiled(kernels.attend, types, sizes | fold | walk, capability, num_warps=warps, num_stages=2)
    assert made.metadata.shared < 99 * 1024, made.metadata.shared
    compiled(kernels.merge, types, sizes | fold, capability)
    compiled(kernels.write_kv, types, sizes | dict(L=size, L_PAD=16), capability)
"""

VOCABULARY = """
from service.engine.forward import sampling_kernels as kernels
names = dict(logits="*bf16", params="*i32", work="*fp32", out="*fp32")
types = names | dict.fromkeys(("V", "V_STRIDE", "MASK_TOKEN"), "i32")
sizes = dict(PART=2048, PARTS=75)
for capability, noise in cases["vocabulary"]:
    walk = sizes | dict(PARTS_PAD=128, NOISE=noise, MIN_P=noise)
    compiled(kernels.sample, types, walk, capability, num_warps=8)
    compiled(kernels.find_likeliest, types, sizes, capability, num_warps=8)
"""

CANDIDATES = """
from service.engine.forward import candidate_kernels as kernels
ints = dict.fromkeys(("STRIDE", "MASK_TOKEN", "H"), "i32")
tensors = dict.fromkeys(("highest", "hidden", "head"), "*bf16") | dict.fromkeys(("table", "params"), "*i32")
tensors |= dict.fromkeys(("tokens", "candidates"), "*i64") | {"out": "*fp32"}
tensors |= dict.fromkeys(("totals", "weights", "logits", "other_weights"), "*fp32")
for capability, noise in cases["candidates"]:
    types = ints | tensors
    compiled(kernels.keep_candidates, types, dict(C=32, PAD=64), capability)
    compiled(kernels.candidate_logits, types | {"C": "i32"}, dict(TILE=8, STEP=512), capability)
    compiled(kernels.choose_candidate, types, dict(C=32, PAD=32, NOISE=noise), capability)
"""

QUANTIZED = """
from service.model.quantization import triton_matmul as kernels
tables = dict(ends="*i32", M="i32", N="i32", K="i32", GROUP="i32", x_scales="*fp32", finished="*i32")
for capability, dtype, rows, splits, groups, experts, whole in cases["quantized"]:
    numbers = dict(x="*i8" if whole else "*bf16", values=dtype, scales="*bf16", out="*bf16")
    types = numbers | tables | dict(sums="*i32" if whole else "*fp32")
    tile, step, depth, warps, stages = kernels.tiling_for(rows)
    sizes = dict(TILE=tile, STEP=step, DEPTH=depth, SPLITS=splits)
    kinds = dict(GROUPS=groups, EXPERTS=experts, EXPERTS_PAD=128, WHOLE=whole, WIDE=False)
    made = compiled(kernels.multiply, types, sizes | kinds, capability, num_warps=warps, num_stages=stages)
    assert made.metadata.shared < 99 * 1024, made.metadata.shared
types = dict(x="*bf16", values="*i8", scales="*fp32", K="i32")
compiled(kernels.quantize_rows, types, dict(K_PAD=16384), 80, num_warps=8, enable_fp_fusion=False)
"""

LAYERS = """
from service.model import triton_layers as kernels
for capability, dtype, width, write in cases["layers"]:
    numbers = dict.fromkeys(("x", "change", "weight", "out", "gate_up"), "*" + dtype) | {"H": "i32", "I": "i32"}
    compiled(kernels.sum_norm, numbers, dict(EPS=1e-6, H_PAD=4096), capability, num_warps=8)
    compiled(kernels.silu_times, numbers, dict(STEP=1024), capability)
    names = ("qkv", "q_weight", "k_weight", "cos", "sin", "keys", "values")
    types = dict.fromkeys(names, "*" + dtype) | {"targets": "*i32"}
    halves = dict(WIDTH=width, HALF_PAD=width // 2, REST_PAD=max(1, 128 - width))
    sizes = dict(EPS=1e-6, HEADS=32, KV_HEADS=8, D=128, TILE=8, L=16, WRITE=write)
    compiled(kernels.rotate_heads, types, halves | sizes, capability, num_warps=2)
"""


#: by kernel: the capability it is compiled for, and what it is specialised by
EVERY: dict[str, list[tuple[object, ...]]] = {
    "attention": [(90, "bf16", 4, 2, 16, 64, 4), (90, "fp32", 4, 2, 32, 16, 8), (80, "fp16", 4, 3, 64, 64, 4)],
    "vocabulary": [(90, True), (90, False), (80, True), (80, False)],
    "candidates": [(90, True), (80, False)],
    "layers": [(90, "bf16", 128, True), (90, "bf16", 64, True), (90, "fp32", 128, False), (80, "fp16", 64, False)],
    "quantized": [
        (90, "*fp8e4nv", 16, 4, True, 0, False),
        (90, "*i8", 128, 1, False, 0, False),
        (90, "*i8", 64, 4, False, 0, True),
        (90, "*i8", 128, 1, False, 128, True),
        (90, "*fp8e4nv", 32, 1, False, 128, False),
        (80, "*i8", 128, 1, False, 100, False),
        (80, "*i8", 16, 4, False, 0, True),
    ],
}
ONE_OF_EACH = {kernel: cases[:1] for kernel, cases in EVERY.items()}


@pytest.mark.parametrize("cases", [ONE_OF_EACH, pytest.param(EVERY, marks=pytest.mark.slow)], ids=["one", "every"])
def test_kernels_compile_for_nvidia(cases: dict[str, list[tuple[object, ...]]], tmp_path: Path) -> None:
    if find_spec("triton") is None:
        pytest.skip("the package triton is not installed")
    # The compiler reads the kernels' source from files, so that the calls lie in a file, too.
    program = [
        COMPILE,
        f"cases = {cases}\n",
        ATTENTION,
        VOCABULARY,
        CANDIDATES,
        QUANTIZED,
        LAYERS,
        'print("compiled")\n',
    ]
    (tmp_path / "compiling.py").write_text("".join(program))
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {
        "TRITON_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(root), *sys.path]),
        "TRITON_INTERPRET": "0",
    }
    done = subprocess.run(
        [sys.executable, str(tmp_path / "compiling.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "compiled\n", done.stderr
