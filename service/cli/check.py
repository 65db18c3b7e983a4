"""`mrp-serve check PATH`: the facts of a checkpoint, and whether everything that serving needs loads."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from service.cli.options import ModelOptions, with_fields
from service.errors import CheckpointError, SettingsError

if TYPE_CHECKING:
    from service.model import Checkpoint, ModelConfig
    from service.model.causality import TextLosses
    from service.text import TextCodec


#: a fact that an option may override -> its key in config.json, where a family has another one
_PUBLISHED_NAMES = {"block_size": "bd_size"}

_OWN_HEAD = {"output head": "its own, which differs from the embedding: tie_word_embeddings in config.json is not so"}


@dataclass(frozen=True, slots=True)
class _Options(ModelOptions):
    write: Annotated[
        bool,
        typer.Option("--write", help="Writes block size and kind of the MRP module into the folder's config.json."),
    ] = False
    kv_cache_dtype: Annotated[str, typer.Option(help="auto: KV pages in the dtype; int8: in 8 bits.")] = "auto"


@with_fields("options", _Options)
def command(options: _Options) -> None:
    """Loads a checkpoint as serving does, decodes a block with it, and prints its facts."""
    from service.model.causality import TEXT, text_losses
    from service.model.families import unknown_keys
    from service.text import TextCodec

    checkpoint = options.load()
    codec = TextCodec.load(checkpoint.path)
    losses = text_losses(checkpoint, codec.encode(TEXT))
    facts = _facts(checkpoint, codec, options) | _text(codec) | _memory(checkpoint, options) | _readings(losses)
    facts["one block decoded in"] = f"{_decode_a_block(checkpoint):.3f} s"
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        table.add_row(name, value)
    Console().print(table)
    if losses is not None:
        _refuse_other_masks(checkpoint, losses)
    unknown = unknown_keys(checkpoint.raw)
    warnings = [codec.warning(checkpoint.config.vocab_size), codec.template.warning]
    warnings.append(f"config.json: nothing reads {', '.join(unknown)}" if unknown else None)
    if not codec.end_tokens(checkpoint.config.eos_token_ids):
        warnings.append("no file names an end token, so answers end at their limit only")
    for warning in warnings:
        if warning:
            print(f"warning: {warning}", file=sys.stderr)
    if not options.write:
        return
    # The facts that the options may override are written, so that every later command has them.
    config, path = checkpoint.config, checkpoint.path / "config.json"
    if checkpoint.path != Path(options.name):
        raise SettingsError(f"--write changes folders, and {options.name} is in the hub's cache", param="write")
    kind = {"mrp_residual": config.mrp.residual, "mrp_scale": config.mrp.scale} if config.mrp else {}
    block_size = (
        {} if config.causal else {"block_size": config.block_size}
    )  # a causal model's is no fact of its weights
    content = json.loads(path.read_text("utf-8")) | block_size | kind
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _refuse_other_masks(checkpoint: Checkpoint, losses: TextLosses) -> None:
    """CheckpointError if the weights know a text only under the other kind of mask."""
    path, seen = checkpoint.path, f"{losses.causal:.2f} causally, {losses.block:.2f} under the block mask"
    if losses.is_causal and not checkpoint.config.causal:
        raise CheckpointError(
            f"{path}: a causal model with shifted logits, as I-DLM and UNO are, and not a block-causal one; with "
            f"model_type i_dlm it is served as such. The loss of a text is {seen}"
        )
    if losses.is_block_causal and checkpoint.config.causal:
        raise CheckpointError(f"{path}: a block-causal model, and not a causal one. The loss of a text is {seen}")


def _text(codec: TextCodec) -> dict[str, str]:
    chat = codec.template
    return {
        "tokenizer": f"{codec.vocab_size} tokens",
        "chat template": "none" if not chat.source else "cannot be used" if chat.problem else "yes",
        "tools": chat.tool_format.name if chat.tool_format else f"none: {chat.tools_problem}",
        "thinking": "yes" if chat.thinking else "no",
    }


def _readings(losses: TextLosses | None) -> dict[str, str]:
    if losses is None:
        return {}
    block, causal, chance = (f"{loss:.2f}" for loss in losses)
    return {"loss of a text": f"{block} nats a token under the block mask, {causal} read causally, {chance} by chance"}


def _memory(checkpoint: Checkpoint, options: _Options) -> dict[str, str]:
    """The sizes that `auto` chooses for the memory that is free beside the weights."""
    from service.engine.memory_plan import RequestedSizes, plan_memory
    from service.model.device import memory_of

    memory = memory_of(checkpoint.device)
    device = f"{memory.free / 2**30:,.1f} of {memory.total / 2**30:,.1f} GiB are free on {checkpoint.device}"
    try:
        sizes = RequestedSizes(kv_cache_dtype=options.kv_cache_dtype)
        fitted = plan_memory(sizes, checkpoint.config, checkpoint.dtype.itemsize, memory)
    except SettingsError as error:
        return {"memory": device, "fits": f"no: {error.message}"}
    cache = f"{fitted.kv_cache_tokens} tokens of KV ({fitted.kv_bytes / 2**20:,.0f} MiB)"
    work = f"{fitted.max_rows} rows a forward (about {fitted.forward_bytes / 2**20:,.0f} MiB)"
    return {"memory": device, "fits": f"{cache}, {fitted.max_running} requests, {work}"}


def _facts(checkpoint: Checkpoint, codec: TextCodec, options: _Options) -> dict[str, str]:
    from service.decode.registry import served_modes
    from service.model.attention import page_bytes
    from service.model.checkpoint import num_parameters, weight_bytes
    from service.model.files import revision_of

    config, mrp = checkpoint.config, checkpoint.config.mrp
    ends = f"{list(config.eos_token_ids)}"
    if config.edit_token_ids is not None:
        ends += f", delete and split {list(config.edit_token_ids)}"
    backbone = num_parameters(replace(config, mrp=None))
    module = num_parameters(config) - backbone
    page = page_bytes(config, checkpoint.dtype.itemsize, options.kv_cache_dtype)
    modes = served_modes(has_mrp=mrp is not None, causal=config.causal)
    weights = weight_bytes(config, checkpoint.dtype, checkpoint.wide_layers)
    return {
        "checkpoint": str(checkpoint.path),
        **({"revision": revision} if (revision := revision_of(checkpoint.path)) else {}),
        "family": config.family,
        "backbone": f"{backbone / 1e6:,.2f} M parameters, {config.num_layers} layers, hidden {config.hidden_size}",
        **_experts(config, backbone),
        "MRP": f"{mrp.num_layers} layers, {module / 1e6:,.2f} M parameters" if mrp else "none",
        **_with_sources(checkpoint, options),
        "vocabulary": f"{config.vocab_size} tokens, mask {config.mask_token_id}, end {ends}",
        "end tokens": _ends(checkpoint, codec),
        **({} if config.tie_word_embeddings or not checkpoint.raw.get("tie_word_embeddings") else _OWN_HEAD),
        "longest sequence": f"{config.max_positions} tokens",
        "modes": ", ".join(modes),
        "weights": f"{weights / 2**20:,.1f} MiB as {_types(checkpoint)}",
        "quality": _quality(checkpoint),
        "KV cache": f"{page / config.block_size / 1024:,.2f} KiB a token",
        **_devices(checkpoint, options),
    }


def _ends(checkpoint: Checkpoint, codec: TextCodec) -> str:
    """The end tokens, each with the files that name it."""
    from service.model.end_tokens import end_tokens
    from service.model.files import read_keys

    named = checkpoint.config.eos_token_ids
    sources = end_tokens(checkpoint.path, read_keys(checkpoint.path))
    ends = {token: ["default" if token in named else "the chat template"] for token in codec.end_tokens(named)}
    return "; ".join(f"{token} by {', '.join(files)}" for token, files in (ends | sources).items()) or "none"


def _with_sources(checkpoint: Checkpoint, options: ModelOptions) -> dict[str, str]:
    """The facts that the options may override, each with its source."""
    from service.model.files import published_module, read_keys

    config, keys = checkpoint.config, read_keys(checkpoint.path)
    module = published_module(checkpoint.path, keys)

    def source(key: str) -> str:
        if getattr(options, key) is not None:
            return f"by --{key.replace('_', '-')}"
        value = keys.get(_PUBLISHED_NAMES.get(key, key), keys.get(key))
        if module is not None:
            differs = value is not None and value != module.keys[key]
            return f"by the name {module.name} (docs/modules.md){f'; config.json says {value}' if differs else ''}"
        return "by config.json" if value is not None else "the default: config.json has no such key"

    size = "the default" if config.causal and options.block_size is None else source("block_size")
    facts = {"block size": f"{config.block_size}, {size}"}
    if config.causal:
        facts["outputs"] = f"each predicts the next token, causally; {config.draft_masks} masks draft"
    elif config.shifted:
        facts["outputs"] = f"each predicts the next token; tokens are revealed in sub-blocks of {config.sub_block_size}"
    if (mrp := config.mrp) is None:
        return facts
    kind = "residual" if mrp.residual else "direct (no residual)"
    return {
        "MRP's kind": f"{kind}, {source('mrp_residual')}",
        "MRP's scale": f"{mrp.scale:g}, {source('mrp_scale')}",
        **facts,
    }


def _types(checkpoint: Checkpoint) -> str:
    from service.model.quantization.schemes import published_scheme

    published = published_scheme(checkpoint.raw)
    if (scheme := checkpoint.config.quantization) is None:
        return f"{checkpoint.dtype}{', widened from 8 bits' if published else ''}"
    wide = f", but for {len(checkpoint.wide_layers)}" if checkpoint.wide_layers else ""
    origin = ", as they are published" if published and not published.widened else ""
    return f"{checkpoint.dtype}, matrices of layers as {scheme}{wide}{origin}"


def _devices(checkpoint: Checkpoint, options: _Options) -> dict[str, str]:
    from service.model.attention import page_bytes
    from service.model.checkpoint import weight_bytes
    from service.model.config import Shard, possible_sizes

    config, dtype, facts = checkpoint.config, checkpoint.dtype, {}
    for size in sorted({2, 4, 8}.intersection(possible_sizes(config))):
        part = Shard(0, size).divide(config)
        weights = weight_bytes(part, dtype, checkpoint.wide_layers) / 2**20
        token = page_bytes(part, dtype.itemsize, options.kv_cache_dtype) / config.block_size / 1024
        facts[f"each of {size} devices"] = f"{weights:,.1f} MiB of weights, {token:,.2f} KiB of KV a token"
    return facts


def _experts(config: ModelConfig, backbone: int) -> dict[str, str]:
    from service.model.config import PoolConfig

    if config.experts is None:
        return {}
    experts, used = config.experts, backbone - config.num_unused_parameters
    layers = f"{config.num_expert_layers} layers have {experts.num_experts}, a token uses {experts.per_token} of each"
    shared = " and the shared ones" if experts.shared_size else ""
    pool = f"; a block's tokens share {experts.limit.capacity}" if isinstance(experts.limit, PoolConfig) else ""
    return {"experts": f"{layers}{shared}, {used / 1e6:,.2f} M parameters in all{pool}"}


def _quality(checkpoint: Checkpoint) -> str:
    from service.quality.presets import in_words, presets_of

    presets = presets_of(checkpoint.path, checkpoint.config, None, checkpoint.activation_parts)
    words = "; ".join(f"{name}: {in_words(plans)}" for name, plans in presets.plans.items())
    return words if presets.missing is None else f"{words}; {presets.missing}"


def _decode_a_block(checkpoint: Checkpoint) -> float:
    from service.decode.modes import Speculative, Static
    from service.engine import Engine, EngineConfig, GenerationRequest

    size = checkpoint.config.block_size
    params = Speculative(1) if checkpoint.mrp else Static()
    engine = Engine(checkpoint, EngineConfig(max_rows=size + 2, kv_cache_tokens=4 * size))
    prompt = tuple(token for token in range(2) if token != checkpoint.config.mask_token_id)[:1]
    [completion] = engine.generate([GenerationRequest("check", prompt, params, max_new_tokens=size)])
    return completion.stats.total_s
