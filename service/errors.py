"""All errors that this package raises on purpose.

MrpServeError
├── InvalidRequest         422  a field of the request is not allowed; `param` names it
│   ├── ModeNotAvailable   422  the mode needs MRP and the checkpoint has none
│   ├── ConstraintFailed   422  an answer cannot go on within its constraint
│   ├── ConstraintNotAvailable 422 answers of this checkpoint cannot be constrained
│   ├── QualityNotAvailable 422 the checkpoint has no calibration file that defines this quality
│   ├── WeightsRefused     422  weights cannot take the place of those that are served; the old ones stay
│   └── PromptTooLong      422  prompt + max_new_tokens over the model's length or the KV cache
├── Unauthorized           401  an API key is required and missing or wrong
├── Forbidden              403  a page of another site asks a service without API keys
├── UnknownModel           404  the request names a model that is not served
├── WeightsConflict        409  newer weights already answer, or came in between
├── SlowReader             408  the client read its stream too slowly
├── SlowBody               408  the request's body came too slowly, and others needed its room
├── BodyTooLarge           413  the request body is over the limit
├── QueueFull              429  the queue is full; try again after `retry_after` seconds
├── RateLimited            429  the API key has used up its requests or tokens of this minute
├── EngineFailed           500  the engine thread stopped on an unexpected error while it had the request
├── DecodingFailed         500  decoding this request raised an unexpected error; other requests go on
├── Quarantined            422  the engines of two replicas stopped while they had the request
├── NotReady               503  the server is loading or draining, or has no replica
│   ├── ScaledToZero       503  the service is scaled to zero; a request that waits starts a replica
│   ├── IngressLost        503  the ingress died before the answer was complete; only behind Serve's proxies
│   ├── ReplicaLost        503  the replica died before the answer was complete
│   ├── ReplicaStopping    503  the replica or its engine is stopping; another replica can take the request
│   └── WeightsBehind      503  the replica has older weights than may answer; another one can take the request
├── WeightsChanged         503  new weights came before the answer was complete
├── WeightUpdateFailed     503  a replica could not update its weights
├── GenerationChangeFailed 503  a replica could not pause, continue, sleep or wake up
├── OutOfMemory            503  the device had no memory for a step of this request; other requests go on
├── DeadlineExceeded       504  the time limit passed before the first token
├── CheckpointError         –   a checkpoint cannot be loaded; the message names the file or weight
├── DataError               –   a file of training data cannot be used; the message names file and line
└── SettingsError           –   a setting or configuration value is not allowed
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

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

    def __init_subclass__(cls) -> None:
        if "code" not in cls.__dict__:
            cls.code = re.sub("(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        self.message = _shortened(message, MAX_MESSAGE)
        super().__init__(self.message)
        self.param = None if param is None else _shortened(param, _MAX_PARAM)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the keyword arguments, too, since errors cross processes (Ray)."""
        return _rebuild, (type(self), self.message, self.param, self.retry_after)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}…"


def _rebuild(kind: type[MrpServeError], message: str, param: str | None, retry_after: float | None) -> MrpServeError:
    return kind(message, param=param, retry_after=retry_after)


class InvalidRequest(MrpServeError):
    """A field of the request is not allowed. The message names the value received and the allowed values."""

    status = 422


class ModeNotAvailable(InvalidRequest):
    """The mode needs MRP and the checkpoint has none."""


class QualityNotAvailable(InvalidRequest):
    """The checkpoint has no calibration file that defines this quality. The message says how to make one."""


class WeightsRefused(InvalidRequest):
    """Weights cannot take the place of those that are served. The message names the first difference.

    The old weights stay.
    """


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


class Unauthorized(MrpServeError):
    """An API key is required and is missing or wrong."""

    status = 401


class Forbidden(MrpServeError):
    """A browser sends the request for a page of another site, or to another name than this server's."""

    status = 403


class UnknownModel(MrpServeError):
    """The request names a model that is not served."""

    status = 404


class WeightsConflict(MrpServeError):
    """Newer weights already answer, or came in between."""

    status = 409


class SlowReader(MrpServeError):
    """The client read its stream too slowly: past its time limit, or too much waited for clients."""

    status = 408


class SlowBody(MrpServeError):
    """The request's body came too slowly, and others needed its room."""

    status = 408


class BodyTooLarge(MrpServeError):
    """The request body is over the configured limit."""

    status = 413


class QueueFull(MrpServeError):
    """The queue is full."""

    status = 429


class RateLimited(MrpServeError):
    """The API key has used up its requests or tokens of this minute."""

    status = 429


class EngineFailed(MrpServeError):
    """The engine thread stopped on an unexpected error while it had the request. The replica is unhealthy."""

    status = 500


class DecodingFailed(MrpServeError):
    """Decoding this request raised an unexpected error. The engine continues with the other requests."""


class Quarantined(MrpServeError):
    """The engines of two replicas stopped while they had the request, so no third one gets it.

    The status is not a 5xx, so that clients do not repeat the request by themselves.
    """

    status = 422


class NotReady(MrpServeError):
    """The server is loading or draining, or has no replica."""

    status = 503


class ScaledToZero(NotReady):
    """The service is scaled to zero because it had no requests. A request that waits starts a replica."""

    code = "asleep"


class ReplicaLost(NotReady):
    """The replica died before the answer was complete."""


class IngressLost(NotReady):
    """The ingress died before the answer was complete. Serve's proxies send it."""


class ReplicaStopping(NotReady):
    """The replica or its engine is stopping. It takes no new requests and gives up those it has."""


class WeightsBehind(NotReady):
    """The replica has older weights than may answer this request. Another replica can take it, or this one later."""


class WeightsChanged(MrpServeError):
    """New weights came before the answer was complete. Only the old weights could continue it."""

    status = 503


class WeightUpdateFailed(MrpServeError):
    """A replica could not update its weights. It answers no request until it has."""

    status = 503


class GenerationChangeFailed(MrpServeError):
    """A replica could not pause, continue, sleep or wake up. It stays as it was."""

    status = 503


class OutOfMemory(MrpServeError):
    """The device had no memory for a step of this request. The engine continues with the other requests."""

    status = 503


class DeadlineExceeded(MrpServeError):
    """The time limit passed before the first token was decoded."""

    status = 504


class CheckpointError(MrpServeError):
    """A checkpoint cannot be loaded."""


class DataError(MrpServeError):
    """A file of training data cannot be used. The message names file and line."""


class SettingsError(MrpServeError):
    """A setting or configuration value is not allowed."""


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
