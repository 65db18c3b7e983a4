"""Text to token ids and back, with a checkpoint's own tokenizer and chat template.

The tokenizer's libraries are imported on the first use of `TextCodec`. An ingress does not use it and so does not
load them.
"""

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

    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise CheckpointError(f"{folder}: the tokenizer cannot be loaded: {error}") from error
