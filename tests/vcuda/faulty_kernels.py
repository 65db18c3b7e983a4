"""Triton kernels that the interpreter runs, each with something that CUDA or Triton's launcher refuses."""

# ruff: noqa: N803 - constants of kernels are in capitals
import triton
import triton.language as tl


@triton.jit
def copy(source, target, count, SIZE: tl.constexpr = 16):
    """Without a fault. Grid: any."""
    at = tl.arange(0, SIZE)
    tl.store(target + at, tl.load(source + at, at < count, 0.0), at < count)


@triton.jit
def named_as_a_local_of_the_launcher(params, target):
    """`params` is a local variable of the function that Triton generates to bind arguments."""
    tl.store(target, tl.load(params))


@triton.jit
def python_in_a_kernel(source, target):
    """A dict is Python, not Triton's language."""
    sizes = {"small": 4.0}
    tl.store(target, tl.load(source) + sizes["small"])


@triton.jit
def too_much_shared_memory(source, target, steps, SIZE: tl.constexpr = 128, STAGES: tl.constexpr = 8):
    """Eight tiles of 128 x 128 bfloat16 numbers are loaded ahead, for each of two operands: 512 KiB."""
    at = tl.arange(0, SIZE)
    where = at[:, None] * SIZE + at[None, :]
    total = tl.zeros([SIZE, SIZE], tl.float32)
    for step in tl.range(0, steps, num_stages=STAGES):
        tile = tl.load(source + step * SIZE * SIZE + where)
        total += tl.dot(tile, tl.load(source + step * SIZE * SIZE + SIZE + where))
    tl.store(target + where, total)
