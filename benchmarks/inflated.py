"""A small checkpoint computed at the cost of a larger shape: the same logits, the same tokens.

Random weights accept no drafts, so they cannot show what drafting gains at a published size. Inflated weights can:

- Zeros pad every matrix. The dimensions of the small model are the first of the large one.
- An RMSNorm averages over more dimensions, so its weights shrink by the root of the sizes' ratio and epsilon by the
  ratio. Queries and keys are scaled too, because their norm has the same epsilon over another ratio.
- Rotary dimension `i` of `d` goes to `i * D / d` of `D`, which has the same frequency. The weights of the keys' norm
  make up for the other scale of the scores, or without norms the keys' projection.
- Further layers have random weights and output projections of zeros. Further heads and inner dimensions have zeros.
- A dimension of its own is a tiny constant. The output head makes of it that the padded tokens cannot win.

MRP is inflated likewise. Knows no engine and writes no files.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from benchmarks.shapes import Shape
from service.errors import InvalidRequest
from service.model import Checkpoint, LoadOptions, ModelConfig, parse_config, read_config, resolve
from service.model.checkpoint import build_checkpoint
from service.model.quantization.prequantized import dequantized
from service.model.weight_mapping import WeightSource
from service.model.weights import WeightFiles, empty_networks, published_weights

_MRP = "mrp_modules.0.model."

_LAYER = re.compile(r"^(.*)layers\.(\d+)\.(.+)\.(?:weight|bias)$")
#: leaf of a weight's name -> its axes; a bias has the first one
_AXES: Mapping[str, tuple[str, ...]] = {
    "embed_tokens": ("vocabulary", "hidden"),
    "lm_head": ("vocabulary", "hidden"),
    "norm": ("hidden",),
    "enorm": ("hidden",),
    "hnorm": ("hidden",),
    "eh_proj": ("hidden", "pair"),
    "input_layernorm": ("hidden",),
    "post_attention_layernorm": ("hidden",),
    "q_proj": ("queries", "hidden"),
    "k_proj": ("keys", "hidden"),
    "v_proj": ("keys", "hidden"),
    "o_proj": ("hidden", "queries"),
    "q_norm": ("head",),
    "k_norm": ("head",),
    "gate_proj": ("inner", "hidden"),
    "up_proj": ("inner", "hidden"),
    "down_proj": ("hidden", "inner"),
}
#: The constant dimension, as a share of the embeddings' root mean square: too small to move a norm.
_TINY = 0.003
#: The padded tokens lose while the last hidden state is at most so many times as large as the embeddings (the demo's
#: is up to 630 times as large), by as much again as the best token can have.
_GROWTH, _MARGIN = 4000.0, 2.0
#: deviation of the random weights of further layers
_DEVIATION = 0.02


@dataclass(frozen=True, slots=True)
class _Axis:
    """Where the dimensions of an axis go: `sources` of the small one to `indices` of `size`."""

    size: int
    indices: Tensor
    sources: Tensor


class InflatedWeights:
    """The weights of a small checkpoint in a larger shape, by published name; a `WeightSource`.

    `raw`: the config.json of the large model. Raises InvalidRequest, naming the size, for a shape that the small model
    does not fit into.
    """

    def __init__(self, raw: Mapping[str, Any], source: WeightSource, shape: Shape, options: LoadOptions) -> None:
        small = parse_config(raw)
        ratio = small.hidden_size / shape.hidden_size
        sizes = asdict(shape) | {"rms_norm_eps": small.rms_norm_eps * ratio, "tie_word_embeddings": False}
        sizes["max_position_embeddings"] = max(small.max_positions, shape.max_position_embeddings)
        self.raw: dict[str, Any] = {**raw, **sizes, "torch_dtype": str(options.dtype).removeprefix("torch.")}
        self._source, self._small, self._large = source, small, parse_config(self.raw)
        if small.experts or self._large.experts:
            raise InvalidRequest("a model with experts cannot be inflated, nor be the shape", param="shape")
        if (small.qk_norm, small.qkv_bias) != (self._large.qk_norm, self._large.qkv_bias):
            raise InvalidRequest(
                "the shape is of another family, whose heads have other norms or biases", param="shape"
            )
        _check_fits(small, self._large)
        self.names: Collection[str] = published_weights(self._large, *empty_networks(self._large)).keys()
        self._device, self._dtype = options.device, options.dtype
        self._axes = _axes(small, self._large)
        self._scales = _scales(small, self._large)

    def read(self, name: str) -> Tensor:
        """A weight of the large model, on the device of the options and in their dtype."""
        layer = _LAYER.match(name)
        *_, leaf, kind = name.split(".")
        axes = [self._axes[axis] for axis in _AXES[leaf][: 1 if kind == "bias" else None]]
        if layer and layer[1] == "model." and int(layer[2]) >= self._small.num_layers:
            return self._further(name, leaf, [axis.size for axis in axes])
        weight = self._placed(self._read(name).float() * self._scales.get(leaf, 1.0), axes)
        if layer or self._small.vocab_size == self._large.vocab_size:
            return weight
        return self._with_constant(name, weight)

    def _read(self, name: str) -> Tensor:
        tied = name == "lm_head.weight" and self._small.tie_word_embeddings
        return self._source.read("model.embed_tokens.weight" if tied else name).to(self._device)

    def _placed(self, weight: Tensor, axes: Sequence[_Axis]) -> Tensor:
        large = torch.zeros([axis.size for axis in axes], device=self._device, dtype=self._dtype)
        sources = torch.meshgrid(*(axis.sources.to(self._device) for axis in axes), indexing="ij")
        indices = torch.meshgrid(*(axis.indices.to(self._device) for axis in axes), indexing="ij")
        large[indices] = weight[sources].to(self._dtype)
        return large

    def _further(self, name: str, leaf: str, shape: list[int]) -> Tensor:
        """A weight of a layer that changes nothing."""
        if len(shape) == 1:
            return torch.ones(shape, device=self._device, dtype=self._dtype)
        if leaf in {"o_proj", "down_proj"}:
            return torch.zeros(shape, device=self._device, dtype=self._dtype)
        generator = torch.Generator(self._device).manual_seed(crc32(name.encode()))
        width = math.sqrt(3) * _DEVIATION
        return torch.empty(shape, device=self._device, dtype=self._dtype).uniform_(-width, width, generator=generator)

    def _with_constant(self, name: str, weight: Tensor) -> Tensor:
        """Writes the constant dimension, the first after the small model's, into the weights that use it."""
        index, vocabulary = self._small.hidden_size, self._small.vocab_size
        carried, read = self._loss()
        if name == "model.embed_tokens.weight":
            weight[:, index] = _TINY * self._read(name).float().square().mean().sqrt()
        elif name == "lm_head.weight":
            weight[vocabulary:, index] = -read
        elif name in {"model.norm.weight", f"{_MRP}norm.weight"}:
            weight[index] = carried
        elif name == f"{_MRP}enorm.weight":
            weight[index] = math.sqrt(index / self._large.hidden_size)
        elif name == f"{_MRP}eh_proj.weight":
            weight[index, index] = 1.0
        return weight

    def _loss(self) -> tuple[float, float]:
        """The factors of the constant dimension in the last norm and the output head."""
        norm, head = self._read("model.norm.weight").float(), self._read("lm_head.weight").float()
        hidden = self._small.hidden_size
        best = (head * norm).norm(dim=1).max().item() * math.sqrt(hidden)
        smallest = _TINY / (_GROWTH * math.sqrt(hidden / self._large.hidden_size))
        scale = _MARGIN * best / smallest
        read = min(scale, torch.finfo(self._dtype).max / 2)
        return scale / read, read


def inflate(name: str | Path, shape: Shape, options: LoadOptions) -> Checkpoint:
    """A checkpoint in a larger shape, made on the device; nothing is written to disk. Its tokenizer is the small one's.

    `name`: a folder or a hub name. Raises CheckpointError and InvalidRequest.
    """
    path = resolve(name)
    weights = InflatedWeights(*dequantized(read_config(path), WeightFiles(path)), shape, options)
    return build_checkpoint(path, weights.raw, weights, options)


def _check_fits(small: ModelConfig, large: ModelConfig) -> None:
    constant = small.vocab_size != large.vocab_size
    sizes = {
        "hidden_size": (small.hidden_size + constant, large.hidden_size),
        "intermediate_size": (small.intermediate_size, large.intermediate_size),
        "num_hidden_layers": (small.num_layers, large.num_layers),
        "num_key_value_heads": (small.num_kv_heads * _copies(small, large), large.num_kv_heads),
        "vocab_size": (small.vocab_size, large.vocab_size),
    }
    for name, (smallest, size) in sizes.items():
        if size < smallest:
            raise InvalidRequest(
                f"the shape's {name} is {size}, this checkpoint needs at least {smallest}", param="shape"
            )
    if large.head_dim % small.head_dim:
        raise InvalidRequest(
            f"the shape's head_dim is {large.head_dim}, this checkpoint needs a multiple of {small.head_dim}",
            param="shape",
        )


def _copies(small: ModelConfig, large: ModelConfig) -> int:
    return -(-(small.num_heads // small.num_kv_heads) // (large.num_heads // large.num_kv_heads))


def _axes(small: ModelConfig, large: ModelConfig) -> dict[str, _Axis]:
    half = torch.arange(small.head_dim // 2) * (large.head_dim // small.head_dim)
    head = torch.cat([half, large.head_dim // 2 + half])  # first and second halves are pairs: each is rotated as before
    per_key, room = small.num_heads // small.num_kv_heads, large.num_heads // large.num_kv_heads
    copies = _copies(small, large)
    key_heads = [head_index // copies for head_index in range(small.num_kv_heads * copies)]
    query_heads = [
        (head_index // per_key * copies + head_index % per_key // room) * room + head_index % per_key % room
        for head_index in range(small.num_heads)
    ]
    hidden = torch.arange(small.hidden_size)
    return {
        "vocabulary": _first(small.vocab_size, large.vocab_size),
        "hidden": _first(small.hidden_size, large.hidden_size),
        "inner": _first(small.intermediate_size, large.intermediate_size),
        "pair": _Axis(
            2 * large.hidden_size, torch.cat([hidden, large.hidden_size + hidden]), torch.arange(2 * small.hidden_size)
        ),
        "head": _Axis(large.head_dim, head, torch.arange(small.head_dim)),
        "queries": _Axis(
            large.num_heads * large.head_dim,
            torch.cat([head_index * large.head_dim + head for head_index in query_heads]),
            torch.arange(small.num_heads * small.head_dim),
        ),
        "keys": _Axis(
            large.num_kv_heads * large.head_dim,
            torch.cat([head_index * large.head_dim + head for head_index in range(len(key_heads))]),
            torch.cat([head_index * small.head_dim + torch.arange(small.head_dim) for head_index in key_heads]),
        ),
    }


def _first(count: int, size: int) -> _Axis:
    return _Axis(size, torch.arange(count), torch.arange(count))


def _scales(small: ModelConfig, large: ModelConfig) -> dict[str, float]:
    """Leaf of a name -> the factor of the weight."""
    hidden, head = small.hidden_size / large.hidden_size, small.head_dim / large.head_dim
    norms = ("norm", "enorm", "hnorm", "input_layernorm", "post_attention_layernorm")
    scales = dict.fromkeys(norms, math.sqrt(hidden))
    if not small.qk_norm:
        return scales | {"k_proj": 1 / math.sqrt(head)}
    return scales | dict.fromkeys(("q_proj", "k_proj"), math.sqrt(hidden / head)) | {"k_norm": math.sqrt(head)}
