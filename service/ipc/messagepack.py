"""Messages as MessagePack, decoded strictly by their types. Nothing that comes can run code or make another type.

An error crosses as the name of its class, one of `service/errors.py`, and its fields. An `Arrival` crosses as the
seconds since. All else is `Data`, plain values, named tuples, dataclasses as maps, and the types of an `Extension`.
"""

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from service import errors
from service.errors import MrpServeError
from service.ipc.data import Arrival

#: the errors that may cross, by name
_ERRORS: dict[str, type[MrpServeError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, MrpServeError)
}
#: an error's name, message, `param` and `retry_after`
_Error = tuple[str, str, str | None, float | None]

_MANY = struct.Struct("!BI")


class Malformed(Exception):
    """A frame holds no valid message. The text names the kind of the problem and no content."""


class Unsendable(Exception):
    """A message has no encoding. Nothing was sent."""


class Extension(NamedTuple):
    """A further type that may cross. `plain`: makes a plain value of it. `make`: makes it again, or raises."""

    kind: type[Any]
    plain: Callable[[Any], Any]
    make: Callable[[Any], Any]


class MessagePack:
    """A codec of frames (`ipc/connections.py`). `receives`: the union of all types that the other end may send."""

    def __init__(self, receives: Any, *extensions: Extension) -> None:
        self._extensions = (*_EXTENSIONS, *extensions)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._plain)
        self._decoder = msgspec.msgpack.Decoder(list[receives], dec_hook=self._made)

    def encode(self, message: object) -> bytes:
        """Unsendable if the message has no encoding: integers beyond 64 bits, halves of characters."""
        try:
            return self._encoder.encode(message)
        except (OverflowError, UnicodeEncodeError, RecursionError, TypeError, ValueError) as error:
            raise Unsendable(f"a message cannot be encoded: {type(error).__name__}") from error

    def content(self, messages: Sequence[bytes]) -> bytes:
        """The content of a frame with these encoded messages."""
        count = len(messages)
        return (bytes((0x90 | count,)) if count < 16 else _MANY.pack(0xDD, count)) + b"".join(messages)

    def decode(self, content: bytes) -> list[Any]:
        try:
            messages: list[Any] = self._decoder.decode(content)
        except Exception as error:  # noqa: BLE001 - a value's own checks may raise any error
            raise Malformed(f"{len(content)} bytes are no message: {type(error).__name__}") from None
        return messages

    def _plain(self, value: Any) -> Any:
        for extension in self._extensions:
            if isinstance(value, extension.kind):
                return extension.plain(value)
        raise TypeError(f"a {type(value).__name__} cannot be sent")

    def _made(self, kind: type[Any], value: Any) -> Any:
        return next(extension for extension in self._extensions if extension.kind is kind).make(value)


def _plain_error(error: MrpServeError) -> _Error:
    name = next(kind.__name__ for kind in type(error).__mro__ if _ERRORS.get(kind.__name__) is kind)
    return name, _whole(error.message), error.param and _whole(error.param), error.retry_after


def _whole(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _make_error(value: Any) -> MrpServeError:
    name, message, param, retry_after = msgspec.convert(value, _Error)
    return _ERRORS[name](message, param=param, retry_after=retry_after)


def _make_arrival(value: Any) -> Arrival:
    if not isinstance(value, float) or not math.isfinite(value):
        raise ValueError("an arrival is a finite number of seconds")
    return Arrival.ago(value)


_EXTENSIONS = (Extension(MrpServeError, _plain_error, _make_error), Extension(Arrival, Arrival.waited_s, _make_arrival))
