"""Every error this package raises on purpose.

MrpServeError
├── InvalidRequest         422  a field of the request is not allowed; `param` names it
│   ├── ModeNotAvailable   422  the mode needs MRP and the checkpoint has none
│   ├── QualityNotAvailable 422 the checkpoint has no calibration file that says what this quality is
│   └── PromptTooLong      422  prompt + max_new_tokens over the model's length or the KV cache
├── Unauthorized           401  an API key is required and missing or wrong
├── UnknownModel           404  the request names a model that is not served
├── BodyTooLarge           413  the request body is over the limit
├── QueueFull              429  too much work waits; try again after `retry_after` seconds
├── RateLimited            429  the API key has used up its requests or tokens of this minute
├── EngineFailed           500  the engine thread stopped on an unexpected error while it had the request
├── DecodingFailed         500  the decoding of this request met an unexpected error; others go on
├── Quarantined            422  the engines of two replicas stopped while they had the request
├── NotReady               503  loading, draining, or no replica
│   ├── Asleep             503  no replica runs, as it should be while nobody asks; asking starts one
│   ├── ReplicaLost        503  the replica died before the answer was complete
│   └── ReplicaStopping    503  the replica stops, or its engine has; another one can take the request
├── OutOfMemory            503  a step of the request found no memory on the device; others go on
├── DeadlineExceeded       504  the time limit passed before the first token
├── CheckpointError         –   a checkpoint cannot be loaded; the message names the file or weight
├── DataError               –   a file of training data cannot be used; the message names file and line
└── SettingsError           –   a setting or configuration value is not allowed

Knows nothing of HTTP libraries: `status` is a number the ingress puts on the wire.
"""

from __future__ import annotations


class MrpServeError(Exception):
    """Base of all errors of this package. `status` is the HTTP status, `code` the machine-readable name."""

    status = 500
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process borders (Ray), keyword arguments included."""
        return _rebuild, (type(self), self.message, self.param, self.retry_after)


def _rebuild(kind: type[MrpServeError], message: str, param: str | None, retry_after: float | None) -> MrpServeError:
    return kind(message, param=param, retry_after=retry_after)


class InvalidRequest(MrpServeError):
    """A field of the request is not allowed; the message gives the value received and what is allowed."""

    status = 422
    code = "invalid_request"


class ModeNotAvailable(InvalidRequest):
    """The mode needs MRP and the checkpoint has none."""

    code = "mode_not_available"


class QualityNotAvailable(InvalidRequest):
    """No calibration file of the checkpoint says what this quality is; the message says how to make one."""

    code = "quality_not_available"


class PromptTooLong(InvalidRequest):
    """prompt + max_new_tokens is over the model's length, or over what the KV cache can ever hold."""

    code = "prompt_too_long"


class Unauthorized(MrpServeError):
    """An API key is required and is missing or wrong."""

    status = 401
    code = "unauthorized"


class UnknownModel(MrpServeError):
    """The request names a model that is not served."""

    status = 404
    code = "unknown_model"


class BodyTooLarge(MrpServeError):
    """The request body is over the configured limit."""

    status = 413
    code = "body_too_large"


class QueueFull(MrpServeError):
    """Too much work waits."""

    status = 429
    code = "queue_full"


class RateLimited(MrpServeError):
    """The API key has used up its requests or tokens of this minute."""

    status = 429
    code = "rate_limited"


class EngineFailed(MrpServeError):
    """The engine thread stopped on an unexpected error while it had the request; the replica is unhealthy."""

    status = 500
    code = "engine_failed"


class DecodingFailed(MrpServeError):
    """The decoding of this one request met an unexpected error. The engine goes on with the others."""

    code = "decoding_failed"


class Quarantined(MrpServeError):
    """The engines of two replicas stopped while they had the request, so no third one gets it.

    The status tells clients not to send it again by themselves, as they do after a 5xx.
    """

    status = 422
    code = "quarantined"


class NotReady(MrpServeError):
    """The replica is loading, draining, or there is none."""

    status = 503
    code = "not_ready"


class Asleep(NotReady):
    """No replica runs because nobody has asked for long; a request that waits starts one."""

    code = "asleep"


class ReplicaLost(NotReady):
    """The replica died before the answer was complete."""

    code = "replica_lost"


class ReplicaStopping(NotReady):
    """The replica stops, or its engine has stopped: it takes no requests and gives up those it has."""

    code = "replica_stopping"


class OutOfMemory(MrpServeError):
    """A step of the request found no memory on the device. The engine goes on with the others."""

    status = 503
    code = "out_of_memory"


class DeadlineExceeded(MrpServeError):
    """The time limit passed before the first token was decoded."""

    status = 504
    code = "deadline_exceeded"


class CheckpointError(MrpServeError):
    """A checkpoint cannot be loaded."""

    code = "checkpoint_error"


class DataError(MrpServeError):
    """A file of training data cannot be used; the message names file and line."""

    code = "data_error"


class SettingsError(MrpServeError):
    """A setting or configuration value is not allowed."""

    code = "settings_error"
