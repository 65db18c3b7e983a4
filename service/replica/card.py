"""Makes the `ModelCard` of a loaded checkpoint: what it can serve."""

from __future__ import annotations

from dataclasses import asdict

from service.decode.modes import MODES
from service.decode.registry import default_knobs, default_mode
from service.errors import SettingsError
from service.quality.presets import presets_of
from service.replica.engines import EngineInfo
from service.replica.examples import examples_of
from service.settings import Settings, slots_of
from service.text import TextCodec
from service.wire import ModelCard, Weights


def make_card(settings: Settings, info: EngineInfo, codec: TextCodec) -> ModelCard:
    """The card of a replica. SettingsError if the default mode needs MRP and the checkpoint has none."""
    config = info.config
    modes = tuple(name for name, params in MODES.items() if config.mrp or params.served_without_mrp)
    default = settings.default_mode or default_mode().mode
    if default not in modes:
        raise SettingsError(
            f"default_mode is {default!r}, this checkpoint has no MRP and serves {', '.join(modes)}",
            param="default_mode",
        )
    steps = config.mrp.default_steps if config.mrp else 0
    return ModelCard(
        name=settings.model_name,
        block_size=config.block_size,
        vocab_size=config.vocab_size,
        max_model_len=info.max_model_len,
        mrp=asdict(config.mrp) if config.mrp else None,
        modes=modes,
        default_mode=default,
        defaults={name: default_knobs(name, steps) for name in modes},
        chat=codec.chat_problem is None,
        quality=presets_of(info.path, config, settings.quality_file, info.activation_parts),
        examples=examples_of(info.path),
        slots=slots_of(info.max_running),
        replica_slots=slots_of(info.max_running),
        tool_format=codec.tool_format.name if codec.tool_format else None,
        tools_problem=codec.tools_problem,
        thinking=codec.thinking,
        weights=Weights(0, settings.model, settings.model),
    )
