"""Text to token ids and back, by the checkpoint's own tokenizer.

What a user writes is text: a literal `<|MASK|>` in a prompt never becomes the control token. Only the
chat template's own control tokens are special. Knows no requests and no engine; thread-safe.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from service.errors import CheckpointError, InvalidRequest
from service.text.pieces import TokenPieces
from service.text.stream import TextStream


class TextCodec:
    """A checkpoint's tokenizer and chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._template_owner = tokenizer
        backend = tokenizer.backend_tokenizer.to_str()
        self._special, self._literal = Tokenizer.from_str(backend), Tokenizer.from_str(backend)
        self._literal.encode_special_tokens = True
        self._unknown: int | None = tokenizer.unk_token_id
        self._control = {
            token for token, added in self._special.get_added_tokens_decoder().items() if added.special
        } - {self._unknown}

    @classmethod
    def load(cls, path: Path) -> TextCodec:
        """Loads tokenizer.json (or what AutoTokenizer finds). Never remote code. CheckpointError if there is none."""
        kind = PreTrainedTokenizerFast if (path / "tokenizer.json").is_file() else AutoTokenizer
        try:
            tokenizer: Any = kind.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
            return cls(tokenizer)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{path}: the tokenizer cannot be loaded: {str(error).splitlines()[0]}") from error

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be encoded."""
        return bool(self._template_owner.chat_template)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. InvalidRequest where the vocabulary has no way to write it."""
        ids = self._literal.encode(text, add_special_tokens=False).ids
        if self._control.isdisjoint(ids):
            return ids
        # A vocabulary of whole words may hold a control token as a word: there its literal is unknown.
        if self._unknown is None:
            raise InvalidRequest("the prompt holds a control token that this vocabulary cannot write as text")
        return [self._unknown if token in self._control else token for token in ids]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Ids of messages (`role`, `content`) in the chat template, ready for the assistant's answer.

        The template's own text may hold control tokens, the contents may not. InvalidRequest if the
        checkpoint has no template or the template refuses the messages.
        """
        return [token for ids, _ in self.chat_pieces(messages) for token in ids]

    def chat_pieces(
        self, messages: Sequence[Mapping[str, str]], *, answer: bool = True
    ) -> list[tuple[list[int], int | None]]:
        """As `encode_chat`, in pieces: ids of the template's own text (None) or of a message's content (its number).

        Without `answer` the template writes no beginning of an answer after the last message.
        """
        if not self.has_chat_template:
            raise InvalidRequest("this checkpoint has no chat template; send `prompt` instead", param="messages")
        nonce = secrets.token_hex(8)
        marked = [{**message, "content": f"\ue000{nonce}{number}\ue001"} for number, message in enumerate(messages)]
        try:
            rendered = str(
                self._template_owner.apply_chat_template(marked, tokenize=False, add_generation_prompt=answer)
            )
        except (TemplateError, ValueError, TypeError) as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}", param="messages") from error
        # Text of the template, number of a message, text, …: it may repeat, reorder and leave out messages.
        pieces = re.split(f"\ue000{nonce}(\\d+)\ue001", rendered)
        found: list[tuple[list[int], int | None]] = [(self._encode_template(pieces[0]), None)]
        for number, text in zip(map(int, pieces[1::2]), pieces[2::2], strict=True):
            found += [(self.encode(messages[number]["content"]), number), (self._encode_template(text), None)]
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; control tokens are left out."""
        return self._special.decode(list(ids), skip_special_tokens=True)

    def stream(self, stop: Sequence[str] = ()) -> TextStream:
        """A decoder for one answer that comes in pieces."""
        return TextStream(self._special, tuple(stop))

    def pieces(self) -> TokenPieces:
        """What each token of one answer is by itself."""
        return TokenPieces(self._special)

    def _encode_template(self, text: str) -> list[int]:
        return self._special.encode(text, add_special_tokens=False).ids
