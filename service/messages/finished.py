"""Finished requests of replicas, from which MRP learns (`training/deployment.py`). They cross by Ray."""

from dataclasses import dataclass, field

from service.engine.request import Stats
from service.messages.wire import Weights


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """The token ids of a prompt, `prompt_tokens` in number, and of its answer. `owner`: the API key's name."""

    token_ids: tuple[int, ...] = field(repr=False)
    prompt_tokens: int
    owner: str
    stats: Stats


@dataclass(frozen=True, slots=True)
class FinishedRequests:
    """The requests that one replica has finished since the last call, and its state.

    `weights`: those that it serves. `num_waiting`: requests that wait in its engine.
    """

    requests: tuple[FinishedRequest, ...]
    weights: Weights
    num_waiting: int
