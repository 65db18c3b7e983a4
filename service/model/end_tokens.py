"""The tokens that end an answer, from every file of a checkpoint that names one. Needs no torch.

The end of a chat turn often stands in one file only: fine-tunes are saved without generation_config.json, or have a
backbone's config.json. vLLM and SGLang also join what these files say. `files.py` and `mrp-serve check` call this.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from service.errors import CheckpointError
from service.model.json_files import read_object

CONFIG = "config.json"
_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")


def end_tokens(path: Path, raw: Mapping[str, Any]) -> dict[int, list[str]]:
    """The end tokens of a folder, each with the files that name it. `raw`: the parsed config.json.

    CheckpointError, which names file and key, for another value. A text that is no token of the tokenizer is left out.
    """
    sources = dict[int, list[str]]()
    for file, token in _named(path, raw):
        if file not in sources.setdefault(token, []):
            sources[token].append(file)
    return sources


def _named(path: Path, raw: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """File and token of every mention."""
    nested = raw.get("text_config")
    ids = [(CONFIG, raw.get("eos_token_id"))]
    ids += [(CONFIG, nested.get("eos_token_id"))] if isinstance(nested, Mapping) else []
    ids.append(("generation_config.json", read_object(path / "generation_config.json").get("eos_token_id")))
    for file, value in ids:
        yield from ((file, token) for token in _checked(file, value, raw.get("vocab_size")))
    for file in _TOKENIZER_FILES:
        text = _text(file, read_object(path / file).get("eos_token"))
        if text and (token := _token_of(path, text, raw.get("vocab_size"))) is not None:
            yield file, token


def _checked(file: str, value: object, vocab: object) -> list[int]:
    token_ids: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
    for token in token_ids:
        if not isinstance(token, int) or isinstance(token, bool):
            expected = "expected an integer or a list of integers"
            raise CheckpointError(f"{file}: eos_token_id is {value!r}, {expected}")
        if token < 0 or (isinstance(vocab, int) and token >= vocab):
            raise CheckpointError(f"{file}: eos_token_id {token!r} is outside the vocabulary of {vocab!r}")
    return token_ids


def _text(file: str, value: object) -> str | None:
    """The text of a token as tokenizers are saved: itself, or in an object."""
    text = value.get("content") if isinstance(value, Mapping) else value
    if text is None or isinstance(text, str):
        return text
    raise CheckpointError(f"{file}: eos_token is {value!r}, expected a text or an object with a text as `content`")


def _token_of(path: Path, text: str, vocab: object) -> int | None:
    """The token of a text. None for none, or one that the model lacks and so never writes."""
    token = _looked_up(path, text)
    if not isinstance(token, int) or isinstance(token, bool) or token < 0:
        return None
    return None if isinstance(vocab, int) and token >= vocab else token


def _looked_up(path: Path, text: str) -> object:
    """The token of a text by tokenizer.json; in a folder without it by the files from which libraries make one."""
    file = path / "tokenizer.json"
    if file.is_file():
        try:
            tokenizer = read_object(file)
        except CheckpointError:  # whoever loads the tokenizer says why it cannot be read
            return None
        return next((token for name, token in _tokens(tokenizer) if name == text), None)
    added = read_object(path / "tokenizer_config.json").get("added_tokens_decoder")
    for token, entry in added.items() if isinstance(added, Mapping) else ():
        if isinstance(entry, Mapping) and entry.get("content") == text and token.isdecimal():
            return int(token)
    names = ("added_tokens.json", "vocab.json")
    return next((token for name in names if (token := read_object(path / name).get(text)) is not None), None)


def _tokens(tokenizer: Mapping[str, Any]) -> Iterator[tuple[object, object]]:
    """Text and number of the tokens in a parsed tokenizer.json: the added ones, then the model's."""
    added, model = tokenizer.get("added_tokens"), tokenizer.get("model")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, Mapping):
            yield entry.get("content"), entry.get("id")
    vocab = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocab, Mapping):
        yield from vocab.items()
    elif isinstance(vocab, list):  # pieces with their scores
        yield from (
            (piece[0] if isinstance(piece, list) and piece else None, token) for token, piece in enumerate(vocab)
        )
