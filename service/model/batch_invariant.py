"""Products whose bits of a row do not depend on the number of rows, for `deterministic` on CUDA.

cuBLAS chooses its order of sums by the number of rows. Our Triton kernel has one order for each matrix
(`quantization/triton_matmul.py`), so all rows of a step may share a forward and its CUDA graph. Layers in 8 bits take
that kernel anyway.
"""

from torch import Tensor, nn

from service.model.checkpoint import Checkpoint
from service.model.experts import Experts
from service.model.triton_support import use_triton


class BatchInvariantLinear(nn.Linear):
    """`nn.Linear` by the Triton kernel."""

    bias: nn.Parameter | None  # type: ignore[assignment]  # torch's hint has no None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's name)
        """input `[..., K]` -> `[..., N]`."""
        from service.model.quantization import triton_matmul

        out: Tensor = triton_matmul.product(input.flatten(0, -2), self.weight).unflatten(0, input.shape[:-1])
        return out if self.bias is None else out + self.bias


def make_batch_invariant(checkpoint: Checkpoint) -> bool:
    """Makes all products of a checkpoint batch-invariant, from now on. False, and no change, where that is not known.

    Known are models without experts on one device, with Triton.
    """
    networks = [network for network in (checkpoint.backbone, checkpoint.mrp) if network is not None]
    modules = [module for network in networks for module in network.modules()]
    has_experts = any(isinstance(module, Experts) for module in modules)
    if has_experts or checkpoint.shard.size > 1 or not use_triton(checkpoint.device, checkpoint.dtype):
        return False
    for module in modules:
        if type(module) is nn.Linear:
            module.__class__ = BatchInvariantLinear  # its parameters, which may be tied, stay the same tensors
    return True
