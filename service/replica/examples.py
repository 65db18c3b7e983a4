"""The examples of a checkpoint's card: `widget` in the front matter of its README.md, as on the Hugging Face Hub.

The playground offers them. A card without them, or one that cannot be read, has none: it must not stop a replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.wire import Example

_MOST = 12
_TITLE_LETTERS = 60


class _Message(BaseModel):
    model_config = ConfigDict(strict=True)

    role: str
    content: str


class _Widget(BaseModel):
    model_config = ConfigDict(strict=True)

    example_title: str | None = None
    text: str | None = Field(None, min_length=1, max_length=4096)
    messages: list[_Message] | None = Field(None, min_length=1, max_length=16)


def examples_of(folder: Path) -> tuple[Example, ...]:
    """The examples of the checkpoint in `folder`, at most twelve."""
    try:
        card = (folder / "README.md").read_text(encoding="utf-8")
        widgets = _front_matter(card).get("widget")
    except (OSError, ValueError, yaml.YAMLError):
        return ()
    return tuple(_examples(widgets if isinstance(widgets, list) else []))[:_MOST]


def _front_matter(card: str) -> dict[str, Any]:
    """The YAML between the first two lines of `---`."""
    _, begin, rest = card.partition("---\n")
    if not begin or not card.startswith("---"):
        return {}
    content = yaml.safe_load(rest.partition("\n---")[0])
    return content if isinstance(content, dict) else {}


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
    return title if len(title) <= _TITLE_LETTERS else f"{title[: _TITLE_LETTERS - 1]}…"
