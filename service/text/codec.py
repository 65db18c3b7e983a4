"""Text to token ids and back, by the checkpoint's own tokenizer.

What a user writes is text: a literal `<|MASK|>` in a prompt never becomes the control token. Only the
chat template's own control tokens are special. Knows no requests and no engine; thread-safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from service.errors import CheckpointError, InvalidRequest
from service.text.answers import spans_of_answers
from service.text.pieces import TokenPieces
from service.text.stream import TextStream
from service.text.template import ChatTemplate, Messages


class TextCodec:
    """A checkpoint's tokenizer and chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._special, self._literal = _copy(tokenizer), _copy(tokenizer)
        self._literal.encode_special_tokens = True
        special = {token: added for token, added in self._special.get_added_tokens_decoder().items() if added.special}
        self._unknown: int | None = tokenizer.unk_token_id
        self._control = special.keys() - {self._unknown}
        self._template = ChatTemplate(tokenizer, [added.content for added in special.values()])
        # In the template's text a private name is what the control token is in transformers: it parts what is beside
        # it in the same way, but no text is taken for it.
        names = {token: self._template.names.of[added.content] for token, added in special.items()}
        self._literal.add_tokens([_named(added, names[token]) for token, added in special.items()])
        self._own = {self._literal.token_to_id(name): token for token, name in names.items()}

    @classmethod
    def load(cls, folder: str | Path) -> TextCodec:
        """Loads tokenizer.json (or what AutoTokenizer finds). Never remote code. CheckpointError if there is none."""
        path = Path(folder)
        kind = PreTrainedTokenizerFast if (path / "tokenizer.json").is_file() else AutoTokenizer
        try:
            tokenizer: Any = kind.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
            return cls(tokenizer)
        except Exception as error:  # the libraries raise many unrelated types
            said = next(iter(str(error).splitlines()), "")
            raise CheckpointError(f"{path}: the tokenizer cannot be loaded: {type(error).__name__}: {said}") from error

    @property
    def vocab_size(self) -> int:
        """How many tokens there are, those added to the vocabulary included."""
        return self._special.get_vocab_size()

    @property
    def has_chat_template(self) -> bool:
        """Whether there is a chat template, be it one that can be used or not."""
        return self._template.source != ""

    @property
    def chat_problem(self) -> str | None:
        """Why messages are refused: there is no chat template, or it cannot be used. None: they are not."""
        return self._template.problem

    @property
    def chat_warning(self) -> str | None:
        """What an operator should know: that the chat template cannot be used, or how it differs from transformers."""
        return self._template.warning

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. InvalidRequest where the vocabulary has no way to write it."""
        ids: list[int] = self._literal.encode(text, add_special_tokens=False).ids
        if self._control.isdisjoint(ids):
            return ids
        # A vocabulary of whole words may hold a control token as a word: there its literal is unknown.
        if self._unknown is None:
            raise InvalidRequest("the prompt holds a control token that this vocabulary cannot write as text")
        return [self._unknown if token in self._control else token for token in ids]

    def encode_chat(self, messages: Messages) -> list[int]:
        """Ids of messages (`role`, `content`) in the chat template, ready for the assistant's answer.

        The ids of transformers' `apply_chat_template`, less control tokens that contents would make. InvalidRequest
        if the checkpoint has no template, or if the template refuses the messages.
        """
        return self._encode_rendered(self._template.render(messages))

    def chat_pieces(self, messages: Messages, *, answer: bool = True) -> list[tuple[list[int], int | None]]:
        """As `encode_chat`, in pieces: ids of what an assistant said (the message's number) or of all else (None).

        What an assistant said begins and ends with a token, as it does when it is decoded. Without `answer` the
        template writes no beginning of an answer after the last message.
        """
        rendered = self._template.render(messages, answer=answer)
        pieces: list[tuple[list[int], int | None]] = []
        end = 0
        for span in spans_of_answers(self._template, messages, rendered, answer=answer):
            pieces.append((self._encode_rendered(rendered[end : span.start]), None))
            pieces.append((self.encode(rendered[span.start : span.end]), span.number))
            end = span.end
        return [*pieces, (self._encode_rendered(rendered[end:]), None)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; control tokens are left out."""
        return self._special.decode(list(ids), skip_special_tokens=True)

    def stream(self, stop: Sequence[str] = ()) -> TextStream:
        """A decoder for one answer that comes in pieces."""
        return TextStream(self._special, tuple(stop))

    def pieces(self) -> TokenPieces:
        """What each token of one answer is by itself."""
        return TokenPieces(self._special)

    def _encode_rendered(self, text: str) -> list[int]:
        return [self._own.get(token, token) for token in self.encode(text)]


def _copy(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """The tokenizer itself, which cuts and pads nothing."""
    copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _named(token: AddedToken, name: str) -> AddedToken:
    """A token of another name that takes the same white space with it. Beside any letter it is one."""
    return AddedToken(name, special=False, lstrip=token.lstrip, rstrip=token.rstrip, normalized=token.normalized)
