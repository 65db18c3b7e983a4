"""Text to token ids and back, with the checkpoint's own tokenizer. Thread-safe.

A prompt is plain text: a literal `<|MASK|>` in it never becomes the control token. Only the chat template's own
control tokens are special. Marks such as `</tool_response>` are tokens in plain prompts, and in chats where the
template or an assistant writes them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from service.errors import CheckpointError, InvalidRequest, PromptTooLong
from service.text import check_tokenizer_config
from service.text.detokenizer import TextStream, TokenTextStream
from service.text.length import TokenLength
from service.text.template import ChatTemplate, Messages, TokenAliases, ToolDefinitions

#: characters of a piece of a text that is likely to be too long; tokens that two cuts may add to a piece
_PIECE: Final = 32 * 1024
_CUT: Final = 1024
#: the characters of a token above which a text is likely to be too long
_LIKELY: Final = 8
#: stands for a position to be scored in a prompt's ids
SCORED: Final = -1


class TextCodec:
    """A checkpoint's tokenizer and its chat `template`."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._special, self._literal = _copy(tokenizer), _copy(tokenizer)
        self._literal.encode_special_tokens = True
        added_tokens = self._special.get_added_tokens_decoder()
        special = {token: added for token, added in added_tokens.items() if added.special}
        marks = {token: added for token, added in added_tokens.items() if not added.special and _is_mark(added.content)}
        self._unknown: int | None = tokenizer.unk_token_id
        self._control = special.keys() - {self._unknown}
        names = ([added.content for added in group.values()] for group in (special, marks))
        self.template = ChatTemplate(tokenizer, *names)
        self._marks = TokenAliases([added.content for added in marks.values()])
        # In a rendered chat, an alias has the role of a control token or of a mark in transformers. It separates its
        # neighbours in the same way, but no user text can become it.
        by_token = {**self.template.aliases.by_token, **self._marks.by_token}
        aliased = special | marks
        aliases = {token: by_token[added.content] for token, added in aliased.items()}
        self._literal.add_special_tokens([_special(added) for added in marks.values()])
        self._literal.add_tokens([_renamed(added, aliases[token]) for token, added in aliased.items()])
        self._token_of_alias = {self._literal.token_to_id(alias): token for token, alias in aliases.items()}
        self._most_tokens: int | None = None
        self._token_length: TokenLength | None = None

    @classmethod
    def load(cls, folder: str | Path) -> TextCodec:
        """Loads tokenizer.json, or by AutoTokenizer. Runs no remote code. CheckpointError if loading fails."""
        path = Path(folder)
        check_tokenizer_config(path)
        kind = PreTrainedTokenizerFast if (path / "tokenizer.json").is_file() else AutoTokenizer
        try:
            tokenizer: Any = kind.from_pretrained(str(path), trust_remote_code=False, local_files_only=True)
            codec = cls(tokenizer)
            codec.template.source.encode()  # half a character cannot be
            return codec
        except Exception as error:  # the libraries raise many unrelated types
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            raise CheckpointError(f"{path}: the tokenizer cannot be loaded: {reason}") from error

    @property
    def vocab_size(self) -> int:
        """The number of tokens, added tokens included."""
        return self._special.get_vocab_size()

    def warning(self, model_size: int) -> str | None:
        """For operators: the tokens that a model of `model_size` tokens lacks. More rows than tokens are usual."""
        beyond = sorted(token for token in self._special.get_vocab().values() if token >= model_size)
        if not beyond:
            return None
        tokens = f"{len(beyond)} tokens beyond the model's {model_size}, from {beyond[0]} on"
        return f"the tokenizer has {tokens}; prompts with their texts are refused"

    @property
    def definition(self) -> str:
        """The tokenizer as `tokenizer.json` writes it, with all added tokens."""
        return self._special.to_str()

    def end_tokens(self, named: Iterable[int]) -> tuple[int, ...]:
        """The tokens that end an answer: those that files name, and the one by which the chat template ends a turn."""
        return tuple(dict.fromkeys([*named, *self._turn_end]))

    @cached_property
    def _turn_end(self) -> list[int]:
        """The control token that the chat template writes after an assistant's message, if there is one."""
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": (content := "turn")}]
        try:
            _, message, rest = self.template.render(messages, answer=False).rpartition(content)
        except InvalidRequest:
            return []
        ids = self.encode_rendered(rest.lstrip()) if message else []
        return [token for token in ids[:1] if token in self._control]

    def limit_to(self, tokens: int) -> None:
        """From now on, a text that cannot fit this number of tokens is refused before it is encoded (PromptTooLong)."""
        self._most_tokens, self._token_length = tokens, TokenLength(self._special)

    def may_be(self, tokens: int, text: str) -> bool:
        """Whether the length of a text allows that it has at most this number of tokens."""
        length = self._token_length
        return length is None or length.most is None or length.size(text) <= tokens * length.most

    def check_length(self, text: str, param: str) -> None:
        """PromptTooLong for a text that cannot fit. `param`: its field."""
        most, length = self._most_tokens, self._token_length
        if most is None or length is None or self.may_be(most, text):
            return
        excess = (
            f"{param} has {length.size(text)} bytes, and {most} tokens stand for at most {most} x {length.most} bytes"
        )
        raise PromptTooLong.over(most, excess, param=param)

    def encode(self, text: str, param: str = "prompt") -> list[int]:
        """Ids of plain text, in which marks are tokens. `param`: its field, for errors.

        InvalidRequest if the vocabulary cannot write it. PromptTooLong above the limit.
        """
        self.check_length(text, param)
        return self._encode(self._marks.alias(text), param)

    def _encode(self, text: str, param: str) -> list[int]:
        self._check_pieces(text, param)
        ids = self.tokenize(text)
        if not self._control.isdisjoint(ids):
            # A vocabulary of whole words may have a control token as a word. Its literal text is then an unknown word.
            if self._unknown is None:
                raise InvalidRequest("the prompt holds a control token that this vocabulary cannot write as text")
            ids = [self._unknown if token in self._control else token for token in ids]
        return [self._token_of_alias.get(token, token) for token in ids]

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text of which the length is checked."""
        # The library's `encode` holds Python's lock, for half a million tokens over a second. A batch of one does not.
        ids: list[int] = self._literal.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _check_pieces(self, text: str, param: str) -> None:
        """PromptTooLong for a text whose first pieces have more than twice the tokens of the limit."""
        most = self._most_tokens
        if most is None or len(text) <= _LIKELY * most:
            return
        count = 0
        for start in range(0, len(text), _PIECE):
            count += len(self.tokenize(text[start : start + _PIECE])) - _CUT
            if count > 2 * most:
                raise PromptTooLong.over(most, f"{param} has more than {most} tokens", param=param)

    def encode_bad_words(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """The ids of each word as `SamplingParams.bad_words_token_ids` takes them, at a text's beginning and within it.

        As in vLLM, the ids after a space count if they are a word of the same length that begins with another token.
        """
        ids = list[tuple[int, ...]]()
        for word in words:
            first, within = (tuple(self.encode(space + word.lstrip())) for space in ("", " "))
            ids.append(first)
            if len(within) == len(first) and within[:1] != first[:1]:
                ids.append(within)
        return tuple(ids)

    def encode_chat(self, messages: Messages, tools: ToolDefinitions = (), *, think: bool | None = None) -> list[int]:
        """Ids of messages (`role`, `content`) in the chat template, ready for the assistant's answer.

        The same ids as transformers' `apply_chat_template`, except that contents never make control tokens. `tools`: as
        transformers takes them. `think`: whether to think, None leaves it to the template.
        InvalidRequest if the checkpoint has no template, or if the template refuses the messages.
        """
        return self.encode_rendered(self.template.render(messages, tools, think=think))

    def encode_message(self, text: str) -> list[int]:
        """Ids of a chat of one message by the user, as `encode_chat`."""
        return self.encode_chat([{"role": "user", "content": text}])

    def decode(self, ids: Sequence[int], *, control: bool = False) -> str:
        """The text of ids, without control tokens, or with `control` their names, too."""
        return self._special.decode(list(ids), skip_special_tokens=not control)

    def name_of(self, token: int) -> str:
        """The text of one token, of a control token its name. A part of a character is `\ufffd`."""
        return self.decode([token], control=True)

    def stream(self, stop: Sequence[str] = (), min_tokens: int = 0) -> TextStream:
        """A detokenizer of one answer. No stop text is searched in the text of the first `min_tokens` tokens."""
        return TextStream(self._special, tuple(stop), min_tokens)

    def token_texts(self) -> TokenTextStream:
        return TokenTextStream(self._special)

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a text of `template.render`."""
        self.check_length(self.template.aliases.restore(self.template.hidden.restore(text)), "messages")
        return self._encode(self.template.hidden.restore(self._marks.alias(text)), "messages")


def _copy(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """A copy of the backend tokenizer that neither truncates nor pads."""
    copy = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _is_mark(content: str) -> bool:
    """Whether an added token stands between parts of a conversation, such as `<think>`: no word and no white space."""
    ends = (content[:1], content[-1:])
    return any(map(str.isalpha, content)) and not any(end.isalnum() or end.isspace() for end in ends)


def _special(token: AddedToken) -> AddedToken:
    """A copy of the token that plain text does not become."""
    flags = {"lstrip": token.lstrip, "rstrip": token.rstrip, "single_word": token.single_word}
    return AddedToken(token.content, special=True, normalized=token.normalized, **flags)


def _renamed(token: AddedToken, name: str) -> AddedToken:
    """A copy of the token with another name that strips the same white space. It matches beside any letter."""
    return AddedToken(name, special=False, lstrip=token.lstrip, rstrip=token.rstrip, normalized=token.normalized)


# --- prompts of `/v1/score`: a text or a chat with marked positions to be scored ------------------------
# The texts between two marks are encoded separately.


def scored_text_ids(codec: TextCodec, text: str, mark: str | None) -> tuple[int, ...]:
    """A text's ids. Without a mark, the position after the text is scored. InvalidRequest if the mark is not in it."""
    codec.check_length(text if mark is None else text.replace(mark, ""), "prompt")
    _check_mark(mark, [text])
    return _scored_ids(text, mark, codec.encode)


def scored_chat_ids(codec: TextCodec, messages: Sequence[Mapping[str, str]], mark: str | None) -> tuple[int, ...]:
    """A chat's ids. Without a mark, the first position of the answer is scored.

    Marks count in contents only. After an assistant's last message no beginning of an answer follows.
    InvalidRequest if no content has the mark, or if the template refuses the messages.
    """
    if mark is None:
        return (*codec.encode_chat(messages), SCORED)
    _check_mark(mark, [message["content"] for message in messages])
    private_mark = f"\uf8ff{secrets.randbelow(10**24):024}\uf8ff"  # only contents have it, not the template
    changed = [{**message, "content": message["content"].replace(mark, private_mark)} for message in messages]
    answer = messages[-1]["role"] != "assistant"
    text = codec.template.render(changed, answer=answer)
    codec.check_length(text.replace(private_mark, ""), "messages")
    return _scored_ids(text, private_mark, codec.encode_rendered)


def _check_mark(mark: str | None, texts: Sequence[str]) -> None:
    if mark is not None and not any(mark in text for text in texts):
        raise InvalidRequest(f"mark is {mark[:80]!r}, which the text does not have", param="mark")


def _scored_ids(text: str, mark: str | None, encode: Callable[[str], list[int]]) -> tuple[int, ...]:
    first, *pieces = [text, ""] if mark is None else text.split(mark)
    ids = encode(first) if first else []
    for part in pieces:
        ids = [*ids, SCORED, *(encode(part) if part else [])]
    return tuple(ids)
