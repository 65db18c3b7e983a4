"""Checks a checkpoint's tokenizer without importing transformers, whose import takes seconds."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from service.errors import CheckpointError


def check_tokenizer(folder: Path) -> None:
    """CheckpointError if tokenizer.json cannot be read. `TextCodec.load` checks folders without that file."""
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise CheckpointError(f"{folder}: the tokenizer cannot be loaded: {error}") from error
