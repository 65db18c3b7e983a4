"""All errors that this package raises on purpose, by their HTTP status. `code` names each for machines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import partial

#: characters of a message and of a field's name; a client's own text may stand in both
MAX_MESSAGE = 4000
_MAX_PARAM = 200


class MrpServeError(Exception):
    """Base of all errors of this package. `status`: the HTTP status. Long texts are cut.

    `code`: the machine-readable name, which is the name of the class unless a class defines another. `param`: the field
    at fault. `retry_after`: seconds after which a client may try again.
    """

    status = 500
    code = "internal_error"

    def __init_subclass__(cls, status: int | None = None, code: str | None = None) -> None:
        cls.status = cls.status if status is None else status
        cls.code = code or re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        self.message = _shortened(message, MAX_MESSAGE)
        super().__init__(self.message)
        self.param = None if param is None else _shortened(param, _MAX_PARAM)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the keyword arguments, too, since errors cross processes (Ray)."""
        return partial(type(self), param=self.param, retry_after=self.retry_after), (self.message,)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


class InvalidRequest(MrpServeError, status=422):
    """A field of the request is not allowed. The message names the value received and the allowed values."""


class ModeNotAvailable(InvalidRequest):
    """The mode needs MRP and the checkpoint has none."""


class QualityNotAvailable(InvalidRequest):
    """The checkpoint has no calibration file that defines this quality. The message says how to make one."""


class WeightsRefused(InvalidRequest):
    """Weights differ in shape from those that are served, which stay. The message names the first difference."""


class ConstraintFailed(InvalidRequest):
    """An answer cannot go on within its constraint, or following the constraint takes too long."""


class ConstraintNotAvailable(InvalidRequest):
    """Answers of this checkpoint cannot be constrained. The message says why."""


class PromptTooLong(InvalidRequest):
    """prompt + max_new_tokens is over the model's length or over the size of the KV cache."""

    @classmethod
    def over(cls, max_model_len: int, excess: str, *, param: str) -> PromptTooLong:
        """The error in the words by which clients know it. `excess`: the sizes that are too large, as a clause."""
        return cls(f"This model's maximum context length is {max_model_len} tokens. However, {excess}.", param=param)


class Unauthorized(MrpServeError, status=401):
    """An API key is required and is missing or wrong."""


class Forbidden(MrpServeError, status=403):
    """A browser sends the request for a page of another site, or to another name than this server's."""


class UnknownModel(MrpServeError, status=404):
    """The request names a model that is not served."""


class WeightsConflict(MrpServeError, status=409):
    """Newer weights already answer, or came in between."""


class SlowReader(MrpServeError, status=408):
    """The client read its stream too slowly: past its time limit, or too much waited for clients."""


class SlowBody(MrpServeError, status=408):
    """The request's body came too slowly, and others needed its room."""


class BodyTooLarge(MrpServeError, status=413):
    """The request body is over the configured limit."""


class QueueFull(MrpServeError, status=429):
    """The queue is full."""


class RateLimited(MrpServeError, status=429):
    """The API key has used up its requests or tokens of this minute."""


class EngineFailed(MrpServeError, status=500):
    """The engine thread stopped on an unexpected error while it had the request. The replica is unhealthy."""


class DecodingFailed(MrpServeError):
    """Decoding this request raised an unexpected error. The engine continues with the other requests."""


class OutputsNotFinite(MrpServeError):
    """The model's outputs for this request are NaN or infinite. The engine continues with the other requests."""


class Quarantined(MrpServeError, status=422):
    """The engines of two replicas stopped while they had the request. No 5xx, so that clients do not repeat it."""


class NotReady(MrpServeError, status=503):
    """The server is loading or draining, or has no replica."""


class ScaledToZero(NotReady, code="asleep"):
    """The service is scaled to zero because it had no requests. A request that waits starts a replica."""


class ControllerAway(NotReady, code="not_ready"):
    """No replica answers, and Serve does not say why. Requests that wait go on waiting."""


class ReplicaLost(NotReady):
    """The replica died before the answer was complete."""


class IngressLost(NotReady):
    """The ingress died before the answer was complete. Serve's proxies send it."""


class ReplicaStopping(NotReady):
    """The replica or its engine is stopping. It takes no new requests and gives up those it has."""


class WeightsBehind(NotReady):
    """The replica has older weights than may answer this request. Another replica can take it, or this one later."""


class WeightsChanged(MrpServeError, status=503):
    """New weights came before the answer was complete. Only the old weights could continue it."""


class WeightUpdateFailed(MrpServeError, status=503):
    """A replica could not update its weights. It answers no request until it has."""


class GenerationChangeFailed(MrpServeError, status=503):
    """A replica could not pause, continue, sleep or wake up. It stays as it was."""


class CacheResetFailed(MrpServeError, status=503):
    """A replica could not reset its prefix cache. The cache may have its blocks."""


class OutOfMemory(MrpServeError, status=503):
    """The device had no memory for a step of this request. The engine continues with the other requests."""


class DeadlineExceeded(MrpServeError, status=504):
    """The time limit passed before the first token was decoded."""


class CheckpointError(MrpServeError):
    """A checkpoint cannot be loaded."""


class DataError(MrpServeError):
    """A file of training data cannot be used. The message names file and line."""


class SettingsError(MrpServeError):
    """A setting or configuration value is not allowed."""


def codes() -> tuple[str, ...]:
    """The codes of all errors of this module, each once."""
    kinds = (kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, MrpServeError))
    return tuple(dict.fromkeys(kind.code for kind in kinds))


# --- the ends of messages about unknown names: "did you mean" -------------------------------------------

#: letters of an unknown name that are compared with the known ones
_COMPARED = 80
#: the similarity of two names of which one is likely to be the other, misspelt
_MISSPELT = 0.8


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest of the known names, or all of them."""
    names = sorted(names)
    close = difflib.get_close_matches(name[:_COMPARED], names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"


def similar(name: str, names: Iterable[str]) -> str:
    """The end of an error about an unknown name: a known name that differs in a few letters, or nothing."""
    close = difflib.get_close_matches(name[:_COMPARED], sorted(names), n=1, cutoff=_MISSPELT)
    return f"; did you mean {close[0]!r}?" if close else ""
