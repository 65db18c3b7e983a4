"""Reads and writes the weights of a checkpoint: safetensors files and the parameters of modules.

Every weight must be there, be used and have its shape. The backbone's family maps weights to parameters. Knows no
config file.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from service.errors import CheckpointError
from service.model.backbone import Backbone
from service.model.config import ModelConfig
from service.model.families import FAMILIES, qwen3
from service.model.files import open_file, weight_files
from service.model.mrp import Mrp
from service.model.parameter_builder import LoadOptions, ParameterBuilder
from service.model.quantization.layers import replace_layer
from service.model.quantization.prequantized import PrequantizedWeights
from service.model.quantization.schemes import QuantScheme, is_quantized, scheme_named
from service.model.weight_mapping import WeightMapping, WeightSource, prefixed

#: bytes that are read from a file before it is opened anew
_MAX_MAPPED = 2**26
MRP_PREFIX = "mrp_modules.0.model."
#: the output head, which a tied config leaves out or repeats
HEAD = "lm_head.weight"
#: tables that libraries save beside weights, and that the network makes itself; transformers and vLLM skip them, too
_TABLE = re.compile(
    r"(^|\.)(rotary_(pos_)?emb\.(\w*inv_freq|(cos|sin|cos_sin)_cached?)"
    r"|(self_)?att(n|ention)\.(masked_)?bias|position_ids)$"
)
#: the rows of two matrices that are compared at once
_COMPARED_ROWS = 4096


class WeightFiles:
    """The safetensors files of a checkpoint. `device`: where weights are read to. On `meta` they have a shape only.

    Raises CheckpointError for a file that is missing or not whole.
    """

    def __init__(self, path: Path, device: str = "cpu") -> None:
        self._device = device
        self._opened: Any = None
        self._opened_file = Path()
        self._mapped = 0
        self._files: dict[str, Path] = {}
        for file in weight_files(path):
            with open_file(file, "pt") as opened:
                self._files |= {name: file for name in opened.keys() if not _TABLE.search(name)}  # noqa: SIM118 (no dict)

    @property
    def names(self) -> Collection[str]:
        return self._files.keys()

    def read(self, name: str) -> Tensor:
        """See `WeightSource`. On the CPU the weight is a view of its file.

        Mapped files count as memory of the process, so a file is opened anew from time to time. Not for every
        weight: opening takes time for every name in a file, and experts have tens of thousands.
        """
        file = self._files[name]
        if file != self._opened_file or self._mapped > _MAX_MAPPED:
            self._opened = open_file(file, "pt", "cpu" if self._device == "meta" else self._device)
            self._opened_file = file
            self._mapped = 0
        if self._device == "meta":
            return torch.empty(self._opened.get_slice(name).get_shape(), device="meta")
        weight: Tensor = self._opened.get_tensor(name)
        self._mapped += weight.nbytes
        return weight


class OverlaidWeights:
    """The weights of several sources. Of sources that have the same weight, the last one counts."""

    def __init__(self, sources: Iterable[WeightSource]) -> None:
        self._owners = {name: source for source in sources for name in source.names}

    @property
    def names(self) -> Collection[str]:
        return self._owners.keys()

    def read(self, name: str) -> Tensor:
        return self._owners[name].read(name)


class _WithoutInit(TorchFunctionMode):
    """Modules made inside draw no random weights.

    A checkpoint's weights replace them. On the meta device torch would import its whole compiler to draw them.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return kwargs["tensor"] if func is torch.nn.init.normal_ else func(*args, **kwargs)


def empty_networks(config: ModelConfig) -> tuple[Backbone, Mrp | None]:
    """The networks of a config on the meta device, which have shapes and no numbers."""
    with torch.device("meta"), _WithoutInit():
        return Backbone(config), Mrp(config, config.mrp) if config.mrp else None


def load_networks(
    path: Path,
    config: ModelConfig,
    source: WeightSource,
    options: LoadOptions,
    changed: Collection[str] | None = None,
) -> tuple[Backbone, Mrp | None]:
    """Backbone and MRP with the weights of a source, or the shard of them that the options name.

    Each parameter is built on its device (`parameter_builder.py`). CheckpointError names the `path` and the weight that
    is missing, not used or of another shape. `config`: the config of the whole model. `changed`: only parameters with
    one of these weights are built, others stay on the meta device. None: all are built.
    """
    shard_config = options.shard.divide(config)
    networks = empty_networks(shard_config)
    builder = ParameterBuilder(path, config, source, options)
    unused = set(source.names)
    if config.tie_word_embeddings:
        unused.discard(HEAD)
    scheme = None if config.quantization is None else scheme_named(config.quantization)
    for target in list(_targets(shard_config, *networks)):
        mapping = target.mapping_in(source.names)
        names = {part.name for part in mapping}
        if changed is None or not names.isdisjoint(changed):
            _replace(target, builder, mapping, scheme if is_quantized(target.name) else None)
        unused -= names
    if any(name.startswith(MRP_PREFIX) and ".experts." in name for name in unused):
        raise CheckpointError(f"{path}: its MRP module has experts, which is not supported: MRP's layers are dense")
    if unused:
        raise CheckpointError(f"{path}: {len(unused)} weights are not used, first: {', '.join(sorted(unused)[:3])}")
    if config.tie_word_embeddings:
        networks[0].tie()
    return networks


def has_own_head(config: ModelConfig, source: WeightSource, dtype: torch.dtype) -> bool:
    """Whether a source with a tied config has a head that differs from the embedding. transformers uses it, too.

    `dtype`: the served type, in which they are compared.
    """
    embedding = FAMILIES[config.family].weight_mappings(config, "embed_tokens.weight")[0][0].name
    if not {HEAD, embedding} <= {*source.names}:
        return False
    matrices = [source.read(name) for name in (HEAD, embedding)]
    if matrices[0].shape != matrices[1].shape:
        return True
    parts = zip(*(matrix.split(_COMPARED_ROWS) for matrix in matrices), strict=True)
    return not all(torch.equal(head.to(dtype), rows.to(dtype)) for head, rows in parts)


def published_weights(
    config: ModelConfig, backbone: Backbone, mrp: Mrp | None, preferred: Collection[str] = ()
) -> dict[str, Tensor]:
    """The modules' weights under their published names; views where a parameter is several weights in files.

    `preferred`: names for a parameter that can be published in several ways.
    Raises CheckpointError for a quantized checkpoint.
    """
    if config.quantization is not None:
        raise CheckpointError(f"matrices are in 8 bits ({config.quantization}), weights are written wide only")
    weights: dict[str, Tensor] = {}
    for target in _targets(config, backbone, mrp):
        parameter = target.parameter.detach()
        weights |= {part.name: parameter[part.indices] for part in target.mapping_in(preferred)}
    return weights


@dataclass(frozen=True, slots=True)
class _Target:
    """A parameter, by the module and its name there, and the mappings that can fill it."""

    module: nn.Module
    name: str
    mappings: Sequence[WeightMapping]

    @property
    def parameter(self) -> nn.Parameter:
        return self.module.get_parameter(self.name)

    def mapping_in(self, names: Collection[str]) -> WeightMapping:
        """The mapping with the largest share of weights among the names; the first if none has any."""
        if len(self.mappings) == 1:
            return self.mappings[0]
        return max(self.mappings, key=lambda mapping: sum(part.name in names for part in mapping) / len(mapping))


def _targets(config: ModelConfig, backbone: Backbone, mrp: Mrp | None) -> Iterator[_Target]:
    """Every parameter once: a tied output head is the embedding and has no weight of its own."""
    family = FAMILIES[config.family]
    for name, _ in backbone.named_parameters():
        yield _Target(backbone, name, family.weight_mappings(config, name))
    if mrp is not None:
        for name, _ in mrp.named_parameters():
            yield _Target(mrp, name, [prefixed(MRP_PREFIX, qwen3.module_weights(config, name))])


def _replace(target: _Target, builder: ParameterBuilder, mapping: WeightMapping, scheme: QuantScheme | None) -> None:
    """Replaces a parameter by its weight. With a `scheme` it is in 8 bits, unless files in 8 bits have it wide."""
    shape, source = target.parameter.shape, builder.source
    weight = None
    if scheme is not None:
        as_published = isinstance(source, PrequantizedWeights) and not source.widened
        weight = builder.prequantized(shape, mapping) if as_published else builder.quantized(shape, mapping, scheme)
    if scheme is not None and weight is not None:
        replace_layer(target.module, target.name, weight, scheme)
        return
    owner, _, leaf = target.name.rpartition(".")
    wide = builder.concatenated(shape, mapping)
    setattr(target.module.get_submodule(owner), leaf, nn.Parameter(wide, requires_grad=False))
