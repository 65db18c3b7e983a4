"""Text to token ids and back, with a checkpoint's own tokenizer and chat template.

The tokenizer's libraries are imported on the first use of `TextCodec`. An ingress does not use it and so does not
load them.
"""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from service.errors import CheckpointError

if TYPE_CHECKING:
    from service.text.codec import TextCodec
else:

    def __getattr__(name: str) -> type:
        if name != "TextCodec":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module("service.text.codec").TextCodec


__all__ = ["TextCodec", "check_tokenizer"]


def check_tokenizer(folder: Path) -> None:
    """CheckpointError if tokenizer.json cannot be read. `TextCodec.load` checks folders without that file.

    Does not import transformers, which takes seconds.
    """
    from tokenizers import Tokenizer

    check_tokenizer_config(folder)
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise CheckpointError(f"{folder}: the tokenizer cannot be loaded: {error}") from error


def check_tokenizer_config(folder: Path) -> None:
    """CheckpointError for a value of tokenizer_config.json that libraries would refuse without its name."""
    if problem := next(_problems(folder / "tokenizer_config.json"), None):
        raise CheckpointError(f"{folder}: the tokenizer cannot be loaded: tokenizer_config.json: {problem}")


def _problems(file: Path) -> Iterator[str]:
    try:
        config = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        yield str(error)
        return
    template = config.get("chat_template") if isinstance(config, dict) else None
    entries = template if isinstance(template, list) else []
    named = (isinstance(entry, dict) and {"name", "template"} <= entry.keys() for entry in entries)
    if not isinstance(template, str | list | dict | None) or not all(named):
        yield f"chat_template is {template!r}, expected a text, or a list of objects with `name` and `template`"
    added = config.get("added_tokens_decoder", {}) if isinstance(config, dict) else {}
    if not isinstance(added, dict):
        yield f"added_tokens_decoder is {added!r}, expected an object"
        return
    for token, entry in added.items():
        if not token.isdecimal() or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            yield f"added_tokens_decoder has {entry!r} for token {token!r}, expected an object with a text as `content`"
