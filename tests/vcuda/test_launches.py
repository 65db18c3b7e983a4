"""Every kernel is launched as CUDA launches it: Triton's own binder, compiler and launcher, for an H100 and an A100.

All tests of this folder go that way (`launcher.py`). These launch the kernels with the arguments of published models,
and launches with planted faults.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from service.engine.forward.model_forward import ExecutionConfig
from service.engine.forward.runner import ModelRunner
from service.model.attention import attention_backend
from service.model.quantization import triton_matmul
from service.model.quantization.layers import QuantizedLinear, QuantizedTensor
from service.model.quantization.schemes import QUANT_SCHEMES
from tests.model.attention_world import Kind, Shape, World
from tests.thinned import fast_only, fast_rows
from tests.vcuda.device import WrongUse
from tests.vcuda.published import published_checkpoint, without_numbers
from tests.vcuda.torch_cuda import virtual_cuda

faulty = pytest.importorskip("tests.vcuda.faulty_kernels", reason="triton is not installed")

H100, A100 = (9, 0), (8, 0)
#: shared memory of a program on the smallest cards that are served (compute capability 8.6 and 8.9)
LEAST_SHARED_BYTES = 99 * 1024
FAST = [("sdar-8b", 4, "bfloat16", H100), ("sdar-30b-a3b", 4, "w8a8", H100), ("sdar-1.7b", 16, "w8a8", A100)]
#: shape, tokens of a block, weights, compute capability
PUBLISHED = [
    *FAST,
    ("sdar-8b", 4, "bfloat16", A100),
    ("sdar-8b", 16, "float32", H100),
    ("sdar-4b", 32, "w8a8", H100),
    ("sdar-8b", 16, "fp8", H100),
    ("sdar-30b-a3b", 16, "bfloat16", H100),
    ("llada2-mini", 32, "w8a8", H100),
    ("stable-diffcoder-8b", 4, "bfloat16", H100),
    ("fast-dllm-1.5b", 32, "bfloat16", H100),
    ("fast-dllm-7b", 32, "w8a8", H100),
]


def launched_kernels(shape, block_size, weights, capability, kv_cache_dtype="auto"):
    """The names of the kernels that an engine of a published shape launches at its start."""
    options = {"capability": capability, "shared_bytes": LEAST_SHARED_BYTES}
    with virtual_cuda(shapes_only=True, total_bytes=2**50, **options) as device, torch.inference_mode():
        checkpoint = published_checkpoint(shape, block_size, weights)
        execution = ExecutionConfig("triton", kv_cache_dtype=kv_cache_dtype)
        ModelRunner(checkpoint, 4096, None, 32, execution).prepare(16)
    assert max(binary.shared_bytes for binary in device.binaries.values()) <= LEAST_SHARED_BYTES
    changing = [binary for binary in device.binaries.values() if binary.kernel == "reveal_picks"]
    assert all(binary.waits_to_store for binary in changing)  # they change states and numbers that all warps read
    return set(device.counts.kernels)


@pytest.mark.parametrize(
    ("shape", "block_size", "weights", "capability"), fast_rows(lambda *row: row in FAST, PUBLISHED), ids=str
)
def test_kernels_of_published_models_are_launched(shape, block_size, weights, capability):
    """The start of an engine launches each kernel in each variant: noise, filters, drafts, written pages, sizes."""
    kernels = launched_kernels(shape, block_size, weights, capability)
    assert {"attend", "rotate_heads", "sum_norm", "silu_times", "sample"} <= kernels
    assert ("choose_candidate" in kernels) is not shape.startswith("fast-dllm")  # sub-blocks have no draft candidates
    assert ("multiply" in kernels) is (weights in QUANT_SCHEMES)


@pytest.mark.parametrize(
    ("shape", "block_size", "weights", "capability"),
    fast_rows(lambda *row: row == FAST[0], [row for row in PUBLISHED if row[2] != "fp8"]),
    ids=str,
)
def test_pages_in_8_bits_take_no_further_kernel(shape, block_size, weights, capability):
    wide = launched_kernels(shape, block_size, weights, capability)
    assert launched_kernels(shape, block_size, weights, capability, "int8") == wide


def test_pages_in_8_bits_are_written_and_read_without_the_kernel_of_the_rotation(device):
    world = World(Kind(4, (4, 2), 16, torch.float32, "cuda", kv_cache_dtype="int8"), [Shape(3, 1, 1)], seed=0)
    world.check(attention_backend(world.cache, "triton"), world.all_rows)
    assert device.counts.kernels["write_kv"] == 2  # numbers, then scales


@pytest.mark.parametrize("scheme", fast_only("fp8".__eq__, QUANT_SCHEMES))
def test_a_product_takes_two_kernels_at_most(scheme):
    """From 1 to 1,024 tokens. Published files have scales of 128 columns."""
    with virtual_cuda(shapes_only=True) as device, torch.inference_mode():
        values, scales = without_numbers(4096, 12288, dtype=torch.int8), without_numbers(4096, 12288 // 128)
        layer = QuantizedLinear(QuantizedTensor(values, scales), QUANT_SCHEMES[scheme])
        for tokens in (1, 16, 64, 256, 1024):
            layer(without_numbers(1, tokens, 12288))
    assert device.counts.kernels == {"multiply": 5, "quantize_rows": 5}


@pytest.mark.parametrize(
    ("weights", "groups"),
    fast_rows(
        lambda weights, groups: weights == "fp8",
        [*((weights, 1) for weights in (*QUANT_SCHEMES, "bfloat16")), ("fp8", 32)],
    ),
)
def test_every_tile_of_a_product_takes_the_same_instruction(weights, groups, monkeypatch):
    """Of an H100's tensor cores. The sums of another one have other bits (`triton_matmul.py`).

    The next step of the loop overwrites registers of operands: no product that reads them may run on then.
    """
    scheme, used = QUANT_SCHEMES.get(weights), []
    values = without_numbers(4096, 4096, dtype=getattr(torch, scheme.dtype if scheme else "bfloat16"))
    tilings = triton_matmul.tilings_of(values, groups)
    for tiling in tilings:
        monkeypatch.setattr(triton_matmul, "tilings_of", lambda *_, only=tiling: (only,))
        with virtual_cuda(shapes_only=True) as device, torch.inference_mode():
            rows, scales = without_numbers(64, 4096), without_numbers(4096, groups) if scheme else None
            triton_matmul.product(rows, values, scales)
        used += [binary for binary in device.binaries.values() if binary.products]
    assert [binary.products for binary in used] == [{"wgmma.mma_async"}] * len(used)
    assert len(used) >= 4
    assert any(binary.running for binary in used) is ((weights, groups) in (("fp8", 1), ("bfloat16", 1)))
    assert not any(binary.from_registers for binary in used)


def test_every_kernel_of_the_service_is_launched():
    """Those of an engine with experts in 8 bits, and the one for pages that the rotation has not written."""
    source = "".join(path.read_text("utf-8") for path in Path("service").rglob("*.py"))
    kernels = set(re.findall(r"@triton.jit(?:\(.*\)[^\n]*)?\ndef (\w+)", source))
    started = {kernel for kernel in kernels if re.search(rf"\b{kernel}\[", source)}
    with virtual_cuda() as device, torch.inference_mode():
        world = World(Kind(4, (4, 2), 16, torch.float32, "cuda"), [Shape(3, 1, 1)], seed=0)
        world.check(attention_backend(world.cache, "triton"), world.all_rows)
    assert set(device.counts.kernels) | launched_kernels("sdar-30b-a3b", 4, "w8a8", H100) == started


# --- planted faults -----------------------------------------------------------------------------------------


def numbers(count=64):
    return torch.zeros(count, device="cuda")


#: by name: the launch, the class of the error, and a part of its text
FAULTS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "an argument's name": (
        lambda: faulty.named_as_a_local_of_the_launcher[1,](numbers(), numbers()),
        "TypeError",
        "failed to specialize argument of type: dict",
    ),
    "a numpy integer": (lambda: faulty.copy[1,](numbers(), numbers(), np.int64(4)), "TypeError", "int64"),
    "a grid without programs": (lambda: faulty.copy[0, 2](numbers(), numbers(), 4), "ValueError", "has no program"),
    "a grid that is too high": (
        lambda: faulty.copy[1, 2**16](numbers(), numbers(), 4),
        "RuntimeError",
        "invalid argument",
    ),
    "a tensor on the host": (lambda: faulty.copy[1,](torch.zeros(4), numbers(), 4), "ValueError", "cpu tensor"),
    "Python in a kernel": (
        lambda: faulty.python_in_a_kernel[1,](numbers(), numbers()),
        "UnsupportedLanguageConstruct",
        "unsupported AST node type: Dict",
    ),
    "too much shared memory": (
        lambda: faulty.too_much_shared_memory[1,](numbers(2**20).bfloat16(), numbers(2**14), 9),
        "OutOfResources",
        "out of resource: shared memory",
    ),
}


def test_a_kernel_without_a_fault_is_launched(device):
    source, target = torch.arange(4.0, device="cuda"), numbers()
    faulty.copy[2, 2](source, target, 3)
    assert target[:4].tolist() == [0.0, 1.0, 2.0, 0.0]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_at_its_launch(device, fault):
    launch, error, text = FAULTS[fault]
    with pytest.raises(Exception, match=text) as raised:
        launch()
    assert type(raised.value).__name__ == error


def test_another_signature_is_counted_as_a_compilation(device):
    """Triton compiles a kernel anew for 1, for multiples of 16, for numbers of 64 bits, and for other alignments."""
    for number, compiled in ((4, 1), (5, 1), (16, 2), (1, 3), (2**31, 4)):
        faulty.copy[1,](numbers(), numbers(), number)
        assert device.counts.compilations == compiled
    faulty.copy[1,](numbers()[1:], numbers(), 4)
    assert device.counts.compilations == 5


def test_a_compilation_in_a_capture_raises(device):
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(WrongUse, match="compiled in a capture"), torch.cuda.graph(graph):
        faulty.copy[1,](numbers(), numbers(), 4)
