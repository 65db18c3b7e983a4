"""A checkpoint's chat template, rendered so that its own control tokens differ from the tokens that a user writes.

In the template's source, an alias that cannot be guessed replaces every control token. The template sees the real
contents. In the rendered text, an alias comes from the template, a control token from a content. This holds for all
changes of contents by the template (trim, split, reverse). transformers' `sanitize_control_tokens` loses characters of
contents, misses tokens that a template assembles from parts, and is not thread-safe.

Some templates assemble control tokens from parts (`'<|' + role + '|>'`). Probes find these tokens. In contents, other
aliases replace them until the template is rendered.

Marks such as `</tool_response>` are tokens, but no control tokens. Aliases replace them in results of tools, messages
of users, definitions of tools and arguments of calls. So no such text can end its place in the conversation, and the
template takes none for its own mark. All other marks in the rendered text are tokens.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from transformers import PreTrainedTokenizerFast

from service.errors import InvalidRequest
from service.text.arrangement import Arrangement
from service.text.tools.calls import Tool, assistant_message, tool_message
from service.text.tools.formats import (
    REASONING_END,
    REASONING_START,
    THINKING_OPTION,
    TOOL_FORMATS,
    ReasoningFormat,
    ToolFormat,
)

Messages = Sequence[Mapping[str, Any]]
ToolDefinitions = Sequence[Mapping[str, Any]]

_THOUGHTS: Final = "<think>\na\n</think>\n\nb"
#: conversations without control tokens as (role, content) pairs; a template must render at least one of them
_PROBES: Final = (
    (("user", "a"),),
    (("system", "a"), ("user", "b")),
    (("user", "a"), ("assistant", "b"), ("user", "c")),
    (("system", "a"), ("user", "b"), ("assistant", _THOUGHTS), ("user", " c\n")),
    (("user", "a"), ("assistant", _THOUGHTS)),
)
#: a conversation with a call of a tool; some templates take ids of nine letters only
_TOOL: Final = Tool("probed", "c", {"type": "object", "properties": {"a": {"type": "string"}}})
_QUESTION: Final = ({"role": "user", "content": "a"},)
_ANSWERED: Final = (
    *_QUESTION,
    assistant_message("", [("call00000", "probed", {"a": "b"})]),
    tool_message("call00000", "probed", "d"),
)
#: the roles whose marks are tokens: their contents come from the model and from the program, not from strangers
_TRUSTED: Final = frozenset({"assistant", "system"})
#: a template that writes the time may give two different texts, but hardly three times in a row
_TRIES: Final = 3


class TokenAliases:
    """Unguessable aliases of control tokens. An alias is one word of digits between two private-use characters."""

    def __init__(self, tokens: Sequence[str]) -> None:
        nonce = f"{secrets.randbelow(10**24):024}"
        self.by_token = {token: f"\ue000{nonce}{index}\ue001" for index, token in enumerate(tokens)}
        self._tokens = {alias: token for token, alias in self.by_token.items()}
        longest_first = sorted(tokens, key=len, reverse=True)
        self._token_pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._alias_pattern = re.compile(f"\ue000{nonce}[0-9]+\ue001")

    def alias(self, text: str, aliases: TokenAliases | None = None) -> str:
        """The text with aliases instead of tokens. `aliases`: other aliases to take."""
        by_token = (aliases or self).by_token
        if not any(token in text for token in self.by_token):
            return text
        return self._token_pattern.sub(lambda match: by_token[match[0]], text)

    def restore(self, text: str) -> str:
        return self._alias_pattern.sub(lambda match: self._tokens[match[0]], text)

    def tokens_in(self, text: str) -> set[str]:
        return set(self._token_pattern.findall(text))


class ChatTemplate:
    """The chat template of a tokenizer with the control tokens `control` and the marks `marks`."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, control: Sequence[str], marks: Sequence[str] = ()) -> None:
        self.aliases, self.hidden = TokenAliases(control), TokenAliases(marks)  # of tokens; of marks in texts
        self.source = ""  # empty if there is no template
        self.problem: str | None = None  # why messages are refused
        self.warning: str | None = None  # for operators: it cannot be used, or differs from transformers
        self.tool_format: ToolFormat | None = None  # how it writes calls of tools
        self.tools_problem = "this checkpoint has no chat template"  # why it cannot be given tools, or empty
        self.thinking: ReasoningFormat | None = None  # how it treats reasoning
        self._tokenizer, self._assembled = tokenizer, TokenAliases(())
        if not tokenizer.chat_template:
            self.problem = "this checkpoint has no chat template; send `prompt` instead"
            return
        try:
            self.source = tokenizer.get_chat_template()
            special_tokens = {name: self._aliased(value) for name, value in tokenizer.special_tokens_map.items()}
            self._options = {**special_tokens, "chat_template": self.aliases.alias(self.source)}
            fills = (partial(self._filled, answer=True, tools=tools) for tools in ((), (_TOOL.definition,)))
            self._arrangements = tuple(map(Arrangement, fills))  # without and with tools
            self._probe()
        except Exception as error:  # noqa: BLE001 - a template is a program, which may raise anything
            self.warning = self.problem = f"the chat template cannot be used: {self._reason(error)}"
            self.tools_problem = self.problem
            return
        self.tools_problem = self._probe_tools()
        if all(mark in self.source and mark in marks for mark in (REASONING_START, REASONING_END)):
            prompt = self._render(self._accepted[0], answer=True).rstrip()
            self.thinking = ReasoningFormat(prompt.endswith(REASONING_START), THINKING_OPTION in self.source)

    def render(
        self, messages: Messages, tools: ToolDefinitions = (), *, answer: bool = True, think: bool | None = None
    ) -> str:
        """The messages as text, with aliases of the template's control tokens and of marks that are text.

        `tools`: as transformers takes them. `answer`: whether the beginning of an answer follows. `think`: whether to
        think, None leaves it to the template. InvalidRequest if there is no usable template, or if it refuses the
        messages.
        """
        if self.problem is not None:
            raise InvalidRequest(self.problem, param="messages")
        try:
            return self._render(messages, answer, tools, think)
        except Exception as error:
            message = f"the chat template refuses these messages: {self._reason(error)}"
            raise InvalidRequest(message, param="messages") from error

    def _render(self, messages: Messages, answer: bool, tools: ToolDefinitions = (), think: bool | None = None) -> str:
        options = self._options if think is None else {**self._options, THINKING_OPTION: think}
        contents = [
            {**_hidden(_with_text_marks(message, self.hidden), self._assembled), "role": _role_of(message)}
            for message in messages
        ]
        definitions = [_hidden(_hidden(tool, self.hidden), self._assembled) for tool in tools]
        text = self._apply(contents, answer, definitions, **options)
        return self._assembled.restore(self._assembled.alias(text, self.aliases))

    def _apply(self, messages: Messages, answer: bool, tools: ToolDefinitions = (), **options: Any) -> str:
        """The text of the messages, arranged as the template needs it. Raises its refusal of what the probes led to."""
        refusal = Exception("no form was tried")
        for form, probed in self._arrangements[bool(tools)].forms(messages):
            try:
                return self._filled(form, answer, tools, **options)
            except Exception as error:  # noqa: BLE001 - a template is a program, which may raise anything
                refusal = error if probed else refusal
        raise refusal

    def _filled(self, messages: Messages, answer: bool, tools: ToolDefinitions = (), **options: Any) -> str:
        copies = [dict(message) for message in messages]
        tools_or_none: Any = list(tools) or None
        apply = self._tokenizer.apply_chat_template
        return str(apply(copies, tools=tools_or_none, tokenize=False, add_generation_prompt=answer, **options))

    def _aliased(self, value: Any) -> Any:
        return self.aliases.alias(value) if isinstance(value, str) else [self._aliased(item) for item in value]

    def _reason(self, error: Exception) -> str:
        return self.aliases.restore(str(error)) or type(error).__name__

    # --- probes at load time -----------------------------------------------------------------------

    def _probe(self) -> None:
        """Finds the control tokens that the template assembles from parts. Raises if the template cannot be used."""
        assembled: set[str] = set()
        accepted, refusals = [], []
        for probe in _PROBES:
            messages = [{"role": role, "content": content} for role, content in probe]
            try:
                self._apply(messages, answer=True)
            except Exception as error:  # noqa: BLE001 - it may refuse some probes, such as one with a system message
                refusals.append(error)
                continue
            if not self._is_followed(messages):
                raise ValueError("it does more with control tokens than write them")
            assembled |= self.aliases.tokens_in(self._render(messages, answer=True))
            accepted.append(messages)
        if not accepted:
            raise refusals[0]
        self._assembled = TokenAliases(sorted(assembled))
        self._accepted = accepted
        if not all(map(self._is_blind, accepted)):
            self.warning = "the chat template looks for control tokens in contents; it finds none, since they are text"

    def _is_blind(self, messages: list[dict[str, str]]) -> bool:
        """Whether control tokens in contents do not change the work of the template."""
        tokens = "a".join(sorted(self.aliases.tokens_in(self.source)))
        try:
            return self._is_followed([{**message, "content": f"a{tokens}a"} for message in messages])
        except Exception:  # noqa: BLE001 - the template refuses them
            return False

    def _probe_tools(self) -> str:
        """Finds how the template writes calls of tools. Returns why it cannot be given tools, empty if it can."""
        tools, arrangement = (_TOOL.definition,), self._arrangements[True]
        try:
            if _TOOL.name not in self._render(_QUESTION, answer=True, tools=tools):
                return "the chat template of this checkpoint knows no tools"
            if arrangement.refusal and not arrangement.writes_calls:
                raise arrangement.refusal
            text = self._render(_ANSWERED, answer=True, tools=tools)
            if not (self._is_followed(_QUESTION, tools) and self._is_followed(_ANSWERED, tools)):
                return "the chat template of this checkpoint does more with control tokens than write them"
        except Exception as error:  # noqa: BLE001 - a template is a program, which may raise anything
            return f"the chat template of this checkpoint cannot show calls of tools: {self._reason(error)}"
        call = (_TOOL.name, '{"a": "b"}')
        matching = (tool_format for tool_format in TOOL_FORMATS.values() if tool_format.written(call) in text)
        self.tool_format = next(matching, None) if arrangement.writes_calls else None
        self._assembled = TokenAliases(sorted(self._assembled.by_token.keys() | self.aliases.tokens_in(text)))
        if self.tool_format is None:
            formats = ", ".join(TOOL_FORMATS)
            return f"the chat template of this checkpoint writes calls in none of the known formats: {formats}"
        return ""

    def _is_followed(self, messages: Messages, tools: ToolDefinitions = ()) -> bool:
        """Whether the text equals transformers' text. A template that writes the time gets several tries."""
        for _ in range(_TRIES):
            expected = self._apply(messages, True, tools)
            text = self._render(messages, answer=True, tools=tools)
            if self.aliases.restore(self.hidden.restore(text)) == expected:
                return True
        return False


def _role_of(message: Mapping[str, Any]) -> str:
    """OpenAI's `developer` is a newer name of `system`."""
    return "system" if message["role"] == "developer" else str(message["role"])


def _with_text_marks(message: Mapping[str, Any], marks: TokenAliases) -> Mapping[str, Any]:
    """A message with aliases instead of the marks that are text: all but those in the texts of trusted roles."""
    trusted = _role_of(message) in _TRUSTED
    return {
        name: value if trusted and isinstance(value, str) else _hidden(value, marks) for name, value in message.items()
    }


def _hidden(value: Any, tokens: TokenAliases) -> Any:
    """A value whose texts have aliases instead of tokens."""
    if isinstance(value, str):
        return tokens.alias(value)
    if isinstance(value, Mapping):
        return {tokens.alias(name): _hidden(item, tokens) for name, item in value.items()}
    return [_hidden(item, tokens) for item in value] if isinstance(value, list) else value
