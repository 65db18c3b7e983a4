"""What the routes of every API need of the ingress: the model card, admission, the replicas, counters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fastapi import Request

from service.admission.charge import TokenCharge
from service.admission.controller import Admission
from service.gateway.http.errors import Count
from service.gateway.http.routes import Authorize
from service.wire import Answer, Answering, ModelCard, ReplicaRequest


@dataclass(frozen=True, slots=True)
class Upstream:
    """The ingress, as the routes of an API see it.

    `authorize` raises for a request without a valid API key. `admit` admits a request or raises. `complete` and
    `stream` answer one request of it. `tokens` counts the tokens of a request's prompt. `count` gets every error.
    """

    authorize: Authorize
    card: Callable[[], Awaitable[ModelCard]]
    admit: Callable[[Request, Sequence[ReplicaRequest]], Awaitable[Admission]]
    complete: Callable[[ReplicaRequest, TokenCharge], Awaitable[Answer]]
    stream: Callable[[ReplicaRequest, TokenCharge], Answering]
    tokens: Callable[[ReplicaRequest, TokenCharge], Awaitable[int]]
    count: Count
    timeout_limit_s: float
