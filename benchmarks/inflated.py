"""A small checkpoint computed at the cost of a larger shape: the same logits, the same tokens.

Random weights accept no drafts, so they cannot show what drafting gains at a published size. Inflated weights can:

- Zeros pad every matrix. The dimensions of the small model are the first of the large one.
- An RMSNorm averages over more dimensions, so its weights shrink by the root of the sizes' ratio and epsilon by the
  ratio. Queries and keys are scaled too, because their norm has the same epsilon over another ratio.
- Rotary dimension `i` of `d` goes to `i * D / d` of `D`, which has the same frequency. The weights of the keys' norm
  make up for the other scale of the scores.
- Further layers have random weights and output projections of zeros. Further heads and inner dimensions have zeros.
- Every expert is the small model's feed-forward. The weights of a token's experts add up to 1, whichever it gets; where
  they add up to another number, experts are divided by it. Shared experts say nothing.
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
from service.model import Checkpoint, LoadOptions, ModelConfig, family_named, parse_config, read_config, resolve
from service.model.checkpoint import build_checkpoint
from service.model.families import qwen3
from service.model.quantization.prequantized import dequantized
from service.model.weight_mapping import WeightSource
from service.model.weights import WeightFiles

_MRP = "mrp_modules.0.model."
_ATTENTION = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
    "self_attn.k_norm",
)  # fmt: skip
_NORMS = ("input_layernorm", "post_attention_layernorm")
_FEED_FORWARD = ("gate_proj", "up_proj", "down_proj")
#: parameters that a family may publish otherwise than Qwen3 does: of a layer, and of the backbone
_OTHERWISE = ("qkv_proj", "o_proj", "q_norm", "k_norm")

_LAYER = re.compile(r"^(.*)layers\.(\d+)\.(.+)\.weight$")
_EXPERT = re.compile(r"\.experts\.\d+\.")
_SHARED = ".shared_experts."
_BIAS = ".expert_bias"
#: leaf of a weight's name -> its axes
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
    "gate": ("experts", "hidden"),
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
        if small.experts:
            raise InvalidRequest("a checkpoint with experts cannot be inflated", param="model")
        ratio = small.hidden_size / shape.hidden_size
        sizes = asdict(shape) | {"rms_norm_eps": small.rms_norm_eps * ratio, "tie_word_embeddings": False}
        sizes["max_position_embeddings"] = max(small.max_positions, shape.max_position_embeddings)
        self.raw: dict[str, Any] = {**raw, **sizes, "torch_dtype": str(options.dtype).removeprefix("torch.")}
        self._source, self._small, self._large = source, small, parse_config(self.raw)
        _check_fits(small, self._large)
        self._device, self._dtype = options.device, options.dtype
        self._axes = _axes(small, self._large)
        self._scales = _scales(small, self._large)
        self._parts = _sources_of(self._large)

    @property
    def names(self) -> Collection[str]:
        """Every weight of the large model."""
        return self._parts.keys()

    def read(self, name: str) -> Tensor:
        """One of them, on the device of the options and in their dtype."""
        parts = [self._inflated(part) for part in self._parts[name]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _inflated(self, name: str) -> Tensor:
        """A weight of the large model by Qwen3's name."""
        if name.endswith(_BIAS):
            return torch.zeros(self._axes["experts"].size, device=self._device)
        layer = _LAYER.match(name)
        leaf = name.removesuffix(".weight").rpartition(".")[2]
        axes = [self._axes[axis] for axis in _axes_of(name, leaf)]
        further = layer and layer[1] == "model." and int(layer[2]) >= self._small.num_layers
        if further or leaf == "gate" or _SHARED in name:
            return self._further(name, leaf, [axis.size for axis in axes])
        of_small = _EXPERT.sub(".", name)
        scale = self._expert_scale if leaf == "down_proj" and of_small != name else self._scales.get(leaf, 1.0)
        weight = self._placed(self._read(of_small).float() * scale, axes)
        return (
            weight if layer or self._small.vocab_size == self._large.vocab_size else self._with_constant(name, weight)
        )

    @property
    def _expert_scale(self) -> float:
        """The divisor of the sum of the weights of a token's experts."""
        groups = self._large.experts and self._large.experts.groups
        return 1.0 / groups.scale if groups else 1.0

    def _read(self, name: str) -> Tensor:
        """A weight of the small model."""
        tied = name == "lm_head.weight" and self._small.tie_word_embeddings
        return self._source.read("model.embed_tokens.weight" if tied else name).to(self._device)

    def _placed(self, weight: Tensor, axes: Sequence[_Axis]) -> Tensor:
        large = torch.zeros([axis.size for axis in axes], device=self._device, dtype=self._dtype)
        sources = torch.meshgrid(*(axis.sources.to(self._device) for axis in axes), indexing="ij")
        indices = torch.meshgrid(*(axis.indices.to(self._device) for axis in axes), indexing="ij")
        large[indices] = weight[sources].to(self._dtype)
        return large

    def _further(self, name: str, leaf: str, shape: list[int]) -> Tensor:
        """A weight of a layer that changes nothing, or of a router."""
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
    experts = {"moe_intermediate_size": (small.intermediate_size, _expert_size(large))} if large.experts else {}
    sizes = experts | {
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
    rotated = large.rotary_dim or large.head_dim
    if rotated % small.head_dim:
        what = "head_dim" if rotated == large.head_dim else "rotated part of a head"
        raise InvalidRequest(
            f"the shape's {what} is {rotated}, this checkpoint needs a multiple of {small.head_dim}",
            param="shape",
        )


def _copies(small: ModelConfig, large: ModelConfig) -> int:
    """Key heads of the large model for one of the small, so that all its query heads have room."""
    return -(-(small.num_heads // small.num_kv_heads) // (large.num_heads // large.num_kv_heads))


def _axes(small: ModelConfig, large: ModelConfig) -> dict[str, _Axis]:
    head = _rotary_indices(small.head_dim, large.rotary_dim or large.head_dim)
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
        "expert": _first(small.intermediate_size, _expert_size(large)),
        "experts": _first(0, large.experts.num_experts if large.experts else 0),
        "shared": _first(0, large.experts.shared_size if large.experts else 0),
        "pair": _Axis(
            2 * large.hidden_size,
            torch.cat([hidden, large.hidden_size + hidden]),
            torch.arange(2 * small.hidden_size),
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


def _axes_of(name: str, leaf: str) -> list[str]:
    """The axes of a weight; an expert's inner size is its own."""
    inner = "shared" if _SHARED in name else "expert" if _EXPERT.search(name) else "inner"
    return [inner if axis == "inner" else axis for axis in _AXES[leaf]]


def _expert_size(model: ModelConfig) -> int:
    return model.experts.intermediate_size if model.experts else model.intermediate_size


def _first(count: int, size: int) -> _Axis:
    return _Axis(size, torch.arange(count), torch.arange(count))


def _rotary_indices(small: int, large: int) -> Tensor:
    """Where the dimensions of a head go, so that each is rotated as before: first and second halves are pairs.

    `large`: how many are rotated there.
    """
    half = torch.arange(small // 2) * (large // small)
    return torch.cat([half, large // 2 + half])


def _scales(small: ModelConfig, large: ModelConfig) -> dict[str, float]:
    """Leaf of a name -> the factor of the weight."""
    hidden, head = small.hidden_size / large.hidden_size, small.head_dim / large.head_dim
    norms = ("norm", "enorm", "hnorm", "input_layernorm", "post_attention_layernorm")
    projections = dict.fromkeys(("q_proj", "k_proj"), math.sqrt(hidden / head))
    return dict.fromkeys(norms, math.sqrt(hidden)) | projections | {"k_norm": math.sqrt(head)}


def _sources_of(config: ModelConfig) -> Mapping[str, list[str]]:
    """Published name of every weight -> Qwen3's names of the weights that lie behind each other in it."""
    sources = {name: [name] for name in _names(config)}
    layers = (f"layers.{index}.self_attn.{leaf}.weight" for index in range(config.num_layers) for leaf in _OTHERWISE)
    for parameter in ("embed_tokens.weight", *layers):
        of_qwen3 = [part.name for part in qwen3.backbone_weights(config, parameter)]
        published = [part.name for part in family_named(config.family).weight_mappings(config, parameter)[0]]
        if published != of_qwen3:
            [name] = published  # the parameter is one weight
            sources = {weight: parts for weight, parts in sources.items() if weight not in of_qwen3}
            sources[name] = of_qwen3
    return sources


def _names(config: ModelConfig) -> list[str]:
    """Qwen3's names, in the order of a forward."""
    layers = [("model.", index) for index in range(config.num_layers)]
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    if config.mrp:
        layers += [(_MRP, index) for index in range(config.mrp.num_layers)]
        names += [f"{_MRP}{leaf}.weight" for leaf in ("enorm", "hnorm", "eh_proj", "norm")]
    for prefix, index in layers:
        layer = f"{prefix}layers.{index}."
        names += [f"{layer}{leaf}.weight" for leaf in (*_NORMS, *_ATTENTION)]
        names += [f"{layer}mlp.{leaf}" for leaf in _of_a_feed_forward(config, prefix, index)]
    return names


def _of_a_feed_forward(config: ModelConfig, prefix: str, layer: int) -> list[str]:
    experts = config.experts
    if prefix == _MRP or experts is None or layer not in experts.layers:
        return [f"{leaf}.weight" for leaf in _FEED_FORWARD]
    folders = [f"experts.{index}." for index in range(experts.num_experts)]
    folders += ["shared_experts."] if experts.shared_size else []
    router = ["gate.weight"] + (["gate.expert_bias"] if experts.groups else [])
    return router + [f"{folder}{leaf}.weight" for folder in folders for leaf in _FEED_FORWARD]
