"""Fields of the bodies of other APIs: served, neutral, refused or ignored.

A field that is not served is refused where its value asks for something that a client relies on, such as a stop text.
Any other field is ignored. The answer's header `x-ignored-fields` names it, and the log names it once. A field with the
value `null` counts as left out.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from service.errors import InvalidRequest, similar

IGNORED: Final = "x-ignored-fields"
#: the request's header that refuses such fields, by `true`
STRICT: Final = "x-strict-fields"
#: the most names in one header, and of one process in the log
_MOST_NAMES, _MOST_LOGGED = 32, 256
#: a name that a header and a log line may have: no key, no prompt, no line end
_NAME: Final = re.compile(r"[A-Za-z_]\w{0,47}(\.[A-Za-z_]\w{0,47}){0,3}", re.ASCII)
_OTHER: Final = "other"
#: fields of vLLM, SGLang, TGI, llama.cpp, Fireworks and Ollama that change the prompt, the weights, or what an answer
#: may be -> the field that serves the purpose on each route, or an empty text
RELIED: Final[Mapping[str, str]] = {
    "adapter_id": "",
    "allowed_token_ids": "regex",
    "banned_strings": "bad_words",
    "banned_tokens": "bad_words",
    "chat_template": "",
    "custom_logit_processor": "",
    "documents": "",
    "format": "response_format",
    "guided_decoding": "response_format",
    "input_ids": "",
    "logits_processors": "",
    "lora": "",
    "lora_path": "",
    "lora_request": "",
    "min_new_tokens": "min_tokens",
    "n_predict": "",
    "no_stop_trim": "",
    "prompt_embeds": "",
    "prompt_truncate_len": "",
    "session_params": "",
    "stop_regex": "",
    "truncate": "",
    "truncate_prompt_tokens": "",
}
#: such fields -> their values that ask for nothing
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "allowed_token_ids": ([],),
    "banned_strings": ([],),
    "banned_tokens": ([], ""),
    "chat_template": ("",),
    "documents": ([],),
    "format": ("",),
    "logits_processors": ([],),
    "lora": ([],),
    "lora_path": ("",),
    "min_new_tokens": (0,),
    "n_predict": (-1,),
    "no_stop_trim": (False,),
    "session_params": ({},),
    "stop_regex": ([], ""),
    "truncate_prompt_tokens": (-1,),
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IgnoredFields:
    """The ignored fields of one request."""

    strict: bool = False  # whether such fields are refused instead
    logged: set[str] = field(default_factory=set)  # names that the log has, of many requests; bounded
    _names: dict[str, None] = field(default_factory=dict)

    def add(self, name: str) -> None:
        """Adds a field by its path without indices. A name that is no plain name counts as `other`."""
        name = name if _NAME.fullmatch(name) and len(self._names) < _MOST_NAMES else _OTHER
        self._names[name] = None
        if name not in self.logged and len(self.logged) < _MOST_LOGGED:
            self.logged.add(name)
            _log.warning("requests have the field %s, which is not served and is ignored", name)

    def add_all(self, answers: Iterable[object]) -> None:
        """Adds the keywords of schemas that the compiler did not enforce in answers, or their first chunks."""
        for answer in answers:
            for name in getattr(answer, "ignored", ()):
                self.add(name)

    @property
    def headers(self) -> dict[str, str]:
        return {IGNORED: ", ".join(self._names)} if self._names else {}


@dataclass(frozen=True, slots=True)
class BodyFields:
    """The fields of an API that are not served."""

    neutral: Mapping[str, tuple[Any, ...]]  # field -> its values that ask for nothing
    refused: Mapping[str, str]  # field whose other values are refused -> the field that helps, or an empty text
    hints: frozenset[str]  # labels and hints, which no answer depends on

    def served(self, body: Mapping[str, Any], model: type[BaseModel], ignored: IgnoredFields) -> dict[str, Any]:
        """The fields of the API's model.

        Adds the names of other fields to `ignored`. InvalidRequest for a field that is refused.
        """
        names = {field.alias or name for name, field in model.model_fields.items()}
        served = dict[str, Any]()
        for name, value in body.items():
            if value is None or name in self.hints:
                continue
            if name in names:
                served[name] = value
            # JSON's equality: false differs from 0, and 0.0 equals 0
            elif (value, isinstance(value, bool)) not in [
                (neutral, isinstance(neutral, bool)) for neutral in self.neutral.get(name, ())
            ]:
                if ignored.strict or name in self.refused:
                    raise self._refusal(name, value, names)
                ignored.add(name)
        return served

    def _refusal(self, name: str, value: object, names: set[str]) -> InvalidRequest:
        if name in self.neutral:
            allowed = " or ".join(json.dumps(neutral) for neutral in (*self.neutral[name], None))
            received = json.dumps(value, ensure_ascii=False)[:80]
            message = f"{name} is {received}, which is not served; allowed is {allowed}"
        else:
            message = f"{name[:80]!r} is not a field of this route"
        helpful = self.refused.get(name)
        hint = f"; use {helpful!r}" if helpful else similar(name, names) if helpful is None else ""
        return InvalidRequest(message + hint, param=name)
