"""API keys and their rate limits.

Keys are read from the settings and their file, stored as SHA-256 digests, compared in constant time. A changed file is
read again. A key itself is never stored, shown or logged. The name of a key is the tenant of its requests.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import RateLimited, SettingsError, Unauthorized, nearest
from service.settings.settings import DIGEST, Settings
from service.settings.sources import read_yaml

_log = logging.getLogger(__name__)

#: the tenant of all requests if no keys are configured
ANONYMOUS = ""

_MINUTE_S = 60.0
_NAME = r"^[A-Za-z0-9._-]{1,64}$"
_NAME_RULE = "1 to 64 letters, digits, '.', '_', '-'"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key and its limits, None for no limit. Under full load, shares follow the weights."""

    name: str
    digest: bytes = field(repr=False, default=b"")
    weight: float = 1.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def salted(self, salt: str) -> str:
        """A cache salt for this key alone. The length of the name keeps other pairs of key and salt apart."""
        return f"{len(self.name)}:{self.name}{salt}" if self.digest else salt


class KeyRing:
    """All API keys. Without any the service is open, and all requests belong to one anonymous tenant.

    `file`: the file of further keys.
    """

    def __init__(self, keys: Sequence[ApiKey], file: Path | None = None) -> None:
        self._fixed, self._file, self._version = tuple(keys), file, _version(file)
        self._keys = self._read_all()
        self._anonymous = ApiKey(ANONYMOUS)

    def _read_all(self) -> tuple[ApiKey, ...]:
        keys = (*self._fixed, *(_read(self._file) if self._file else ()))
        names: dict[str, str] = {}
        for key in keys:
            if key.name in names.values():
                raise SettingsError(f"API keys: the name {key.name!r} is given twice", param="api_keys")
            if (twin := names.setdefault(key.digest.hex(), key.name)) != key.name:
                both = f"{twin!r} and {key.name!r}"
                raise SettingsError(f"API keys: the key of {both} is given twice", param="api_keys")
        return keys

    def refresh(self) -> bool:
        """Reads the file again if it has changed. A wrong file changes no key. Whether the keys are new."""
        if (version := _version(self._file)) == self._version:
            return False
        self._version = version
        try:
            self._keys = self._read_all()
        except (SettingsError, OSError) as error:
            _log.error("the API keys stay as they are: %s", error)
            return False
        _log.warning("api_keys_file has changed; the number of API keys is now %d", len(self))
        return True

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def load(cls, settings: Settings) -> KeyRing:
        """The keys of the settings (`key-1`, `key-2`, …) and of their file. SettingsError if one is not allowed."""
        return cls(_named(settings.api_keys), settings.api_keys_file)

    @classmethod
    def load_admins(cls, settings: Settings) -> KeyRing:
        """The keys of administrators, who may update weights."""
        return cls(_named(settings.admin_keys))

    def find(self, secret: bytes, name: str = "API key") -> ApiKey:
        """The key with this secret, compared with every key in constant time. The anonymous key if there are none.

        Unauthorized if no key has it. `name`: the name of the key in that error.
        """
        if not self._keys:
            return self._anonymous
        digest = hashlib.sha256(secret).digest()
        matches = [key for key in self._keys if hmac.compare_digest(digest, key.digest)]
        if not matches:
            problem = "wrong" if secret else "missing"
            raise Unauthorized(f"the {name} is {problem}; send `Authorization: Bearer <key>`")
        return matches[0]


def _version(file: Path | None) -> tuple[int, ...]:
    """Numbers that differ when the file has changed. Kubernetes replaces the link to a file of a Secret."""
    try:
        status = file.stat() if file else None
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_ino, status.st_size) if status else ()


def _named(keys: Sequence[str]) -> list[ApiKey]:
    """Hashed keys of the settings, named by numbers."""
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
    keys = []
    for number, entry in enumerate(content, 1):
        try:
            fields = _KeyEntry.model_validate(entry).model_dump()
        except ValidationError as error:
            reason = "; ".join(_explain(problem) for problem in error.errors(include_url=False, include_input=False))
            raise SettingsError(f"api_keys_file {path}, entry {number}: {reason}", param="api_keys_file") from None
        keys.append(ApiKey(digest=bytes.fromhex(fields.pop("sha256")), **fields))
    return keys


def _explain(problem: Any) -> str:
    """The message for a problem. It never shows the value, which may be a key in the wrong place."""
    name = ".".join(str(part) for part in problem["loc"]) or "the entry"
    if problem["type"] == "extra_forbidden":
        return f"{name!r} is not a field; {nearest(name, _KeyEntry.model_fields)}"
    if problem["type"] == "string_pattern_mismatch":
        allowed = "64 hexadecimal digits" if name == "sha256" else _NAME_RULE
        return f"{name}: {allowed} are expected"
    return f"{name}: {problem['msg']}"


class Bucket:
    """A token bucket of `per_minute`, which refills evenly. It may go below 0 when more is used than was estimated."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self.size, self._clock = per_minute, clock
        self._left, self._since = per_minute, clock()

    @property
    def left(self) -> float:
        now = self._clock()
        self._left = min(self.size, self._left + (now - self._since) * self.size / _MINUTE_S)
        self._since = now
        return self._left

    def wait_s(self, amount: float) -> float:
        """Seconds until `amount` may be used if nothing else is. An amount above `per_minute` needs a full bucket."""
        missing = min(amount, self.size) - self.left
        return max(0.0, missing * _MINUTE_S / self.size)

    def consume(self, amount: float) -> None:
        """Uses `amount`. A negative amount is given back."""
        self._left = min(self.size, self.left - amount)


class RateLimits:
    """The buckets of all keys with limits. `sharers`: the number of ingresses, which get equal parts of every limit."""

    def __init__(self, clock: Callable[[], float], sharers: int = 1) -> None:
        self._clock, self._sharers = clock, sharers
        self._buckets: dict[tuple[str, str], Bucket] = {}  # by the name of the key, and requests or tokens

    def take_request(self, key: ApiKey) -> None:
        """Counts a request of the key. RateLimited if the key may send none now."""
        if key.requests_per_minute is not None:
            self._check(key, "requests", key.requests_per_minute, 1.0)
            self._buckets[key.name, "requests"].consume(1.0)

    def give_back_request(self, key: ApiKey) -> None:
        """A request of the key does not count after all."""
        if bucket := self._buckets.get((key.name, "requests")):
            bucket.consume(-1.0)

    def check_tokens(self, key: ApiKey, tokens: float) -> None:
        """RateLimited if the key may not use `tokens` tokens now."""
        if key.tokens_per_minute is not None:
            self._check(key, "tokens", key.tokens_per_minute, tokens)

    def consume_tokens(self, tenant: str, tokens: float) -> None:
        """Counts tokens of the tenant. A negative number corrects an estimate that was too high."""
        if bucket := self._buckets.get((tenant, "tokens")):
            bucket.consume(tokens)

    def _check(self, key: ApiKey, unit: str, per_minute: int, amount: float) -> None:
        size = per_minute / self._sharers
        if (bucket := self._buckets.get((key.name, unit))) is None or bucket.size != size:
            bucket = self._buckets[key.name, unit] = Bucket(size, self._clock)
        if wait_s := bucket.wait_s(amount):
            limit = f"key {key.name!r} may have {per_minute} {unit} a minute"
            raise RateLimited(f"{limit}; try again in {wait_s:.1f} s", retry_after=wait_s)
