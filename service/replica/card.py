"""Makes the `ModelCard` of a loaded checkpoint, with the examples of its README.md (`widget`, as on the Hub).

A README.md without them, or one that cannot be read, has none: it must not stop a replica.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.decode.registry import default_knobs, default_mode, served_modes
from service.engine_process.messages import EngineInfo
from service.errors import SettingsError
from service.messages.replica_status import Example, ModelCard
from service.quality.presets import presets_of
from service.settings.settings import ANY_NAME, Settings, slots_of
from service.text import TextCodec

_MAX_EXAMPLES, _TITLE_LENGTH = 12, 60


def make_card(settings: Settings, info: EngineInfo, codec: TextCodec) -> ModelCard:
    """The card of a replica. SettingsError if the checkpoint does not serve the default mode."""
    config = info.config
    modes = tuple(served_modes(has_mrp=config.mrp is not None, causal=config.causal))
    default = settings.default_mode or default_mode().name
    if default not in modes:
        raise SettingsError(
            f"default_mode is {default!r}, this checkpoint {'is causal' if config.causal else 'has no MRP'} and serves "
            f"{', '.join(modes)}",
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
        chat=codec.template.problem is None,
        quality=presets_of(info.path, config, settings.quality_file, info.activation_parts),
        examples=read_examples(info.path),
        slots=slots_of(info.max_running),
        replica_slots=slots_of(info.max_running),
        tool_format=codec.template.tool_format.name if codec.template.tool_format else None,
        tools_problem=codec.template.tools_problem,
        thinking=codec.template.thinking,
        weights=info.weights,
        created=int((info.path / "config.json").stat().st_mtime),
        aliases=settings.model_names[1:],
        any_name=ANY_NAME in settings.served_model_name,
    )


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)

    role: str
    content: str


class _Widget(BaseModel):
    model_config = ConfigDict(strict=True)

    example_title: str | None = None
    text: str | None = Field(None, min_length=1, max_length=4096)
    messages: list[_Message] | None = Field(None, min_length=1, max_length=16)


def read_examples(folder: Path) -> tuple[Example, ...]:
    """The examples of the checkpoint in `folder`, at most twelve."""
    try:
        before, begin, rest = (folder / "README.md").read_text(encoding="utf-8").partition("---\n")
        front_matter = yaml.safe_load(rest.partition("\n---")[0]) if begin and not before else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return ()
    widgets = front_matter.get("widget") if isinstance(front_matter, dict) else None
    return tuple(_examples(widgets if isinstance(widgets, list) else []))[:_MAX_EXAMPLES]


def _examples(widgets: list[Any]) -> Iterator[Example]:
    for entry in widgets:
        try:
            widget = _Widget.model_validate(entry)
        except ValidationError:  # one of another task, such as a picture to classify
            continue
        if widget.messages is not None:
            messages = tuple(message.model_dump() for message in widget.messages)
            yield Example(_title(widget, messages[-1]["content"]), messages=messages)
        elif widget.text is not None:
            yield Example(_title(widget, widget.text), text=widget.text)


def _title(widget: _Widget, prompt: str) -> str:
    title = widget.example_title or " ".join(prompt.split())
    return title if len(title) <= _TITLE_LENGTH else f"{title[: _TITLE_LENGTH - 1]}…"
