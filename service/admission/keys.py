"""API keys: read from the settings and their file, kept as SHA-256 digests, compared in constant time.

A key itself is never kept, shown or logged. The name of a key is the tenant of its requests.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import SettingsError
from service.settings import DIGEST, Settings, nearest, read_yaml

_log = logging.getLogger(__name__)

#: the tenant of all requests if no keys are configured
ANONYMOUS = ""

_NAME = r"^[A-Za-z0-9._-]{1,64}$"
_NAME_RULE = "1 to 64 letters, digits, '.', '_', '-'"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key and its limits. None means no limit.

    Under full load a key of weight 2 gets twice the share of a key of weight 1.
    """

    name: str
    digest: bytes = field(repr=False, default=b"")
    weight: float = 1.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def salted(self, salt: str) -> str:
        """A cache salt for this key alone.

        It begins with the length of the name, so another pair of key and salt cannot give the same text.
        """
        return f"{len(self.name)}:{self.name}{salt}" if self.digest else salt


class KeyRing:
    """All API keys. Without any the service is open, and all requests belong to one anonymous tenant."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        _refuse_twice("the name", [key.name for key in keys])
        _refuse_twice("the key of", [key.digest.hex() for key in keys], [key.name for key in keys])
        self._keys = tuple(keys)
        self._anonymous = ApiKey(ANONYMOUS)

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._keys)

    @classmethod
    def load(cls, settings: Settings) -> KeyRing:
        """The keys of the settings (`key-1`, `key-2`, …) and of their file. SettingsError if one is not allowed."""
        named = _named(settings.api_keys)
        return cls([*named, *(_read(settings.api_keys_file) if settings.api_keys_file else ())])

    @classmethod
    def of_admins(cls, settings: Settings) -> KeyRing:
        """The keys of those who may exchange weights."""
        return cls(_named(settings.admin_keys))

    @property
    def configured(self) -> bool:
        """Whether there are keys."""
        return bool(self._keys)

    def find(self, given: bytes) -> ApiKey | None:
        """The key that `given` is; None if it is not known. The anonymous key if none are configured.

        `given` is compared with every key, in constant time.
        """
        if not self._keys:
            return self._anonymous
        digest = hashlib.sha256(given).digest()
        found = [key for key in self._keys if hmac.compare_digest(digest, key.digest)]
        return found[0] if found else None


def _named(keys: Sequence[str]) -> list[ApiKey]:
    """Hashed keys of the settings, which have numbers for names."""
    return [ApiKey(f"key-{number}", bytes.fromhex(key.removeprefix(DIGEST))) for number, key in enumerate(keys, 1)]


def check_name(name: str) -> None:
    """SettingsError if `name` cannot be the name of a key."""
    if not re.fullmatch(_NAME, name):
        raise SettingsError(f"a key's name is {name!r}, allowed are {_NAME_RULE}")


class _KeyEntry(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=_NAME)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
    weight: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None


def _read(path: Path) -> Iterable[ApiKey]:
    content = read_yaml(path, "api_keys_file", "api_keys_file")
    if path.stat().st_mode & stat.S_IROTH:
        _log.warning("api_keys_file %s can be read by everybody on this machine; chmod 600 is recommended", path)
    if not isinstance(content, list) or not content:
        raise SettingsError(
            f"api_keys_file {path} must be a list of keys, each with `name` and `sha256`", param="api_keys_file"
        )
    return [_key(path, number, entry) for number, entry in enumerate(content, 1)]


def _key(path: Path, number: int, entry: Any) -> ApiKey:
    try:
        made = _KeyEntry.model_validate(entry)
    except ValidationError as error:
        reason = "; ".join(_explain(problem) for problem in error.errors(include_url=False, include_input=False))
        raise SettingsError(f"api_keys_file {path}, entry {number}: {reason}", param="api_keys_file") from None
    digest = bytes.fromhex(made.sha256)
    return ApiKey(made.name, digest, made.weight, made.requests_per_minute, made.tokens_per_minute)


def _explain(problem: Any) -> str:
    """The message for a problem. It never shows the value, which may be a key in the wrong place."""
    name = ".".join(str(part) for part in problem["loc"]) or "the entry"
    if problem["type"] == "extra_forbidden":
        return f"{name!r} is not a field; {nearest(name, _KeyEntry.model_fields)}"
    if problem["type"] == "string_pattern_mismatch":
        allowed = "64 hexadecimal digits" if name == "sha256" else _NAME_RULE
        return f"{name}: {allowed} are expected"
    return f"{name}: {problem['msg']}"


def _refuse_twice(what: str, values: Sequence[str], names: Sequence[str] | None = None) -> None:
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        if value in seen:
            shown = f"{names[seen[value]]!r} and {names[index]!r}" if names else repr(value)
            raise SettingsError(f"API keys: {what} {shown} is given twice", param="api_keys")
        seen[value] = index
