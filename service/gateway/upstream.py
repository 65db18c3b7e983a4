"""What the routes of every API need of the ingress: the model card, admission, the replicas, counters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fastapi import Request

from service.admission.charge import TokenCharge
from service.admission.controller import Admission
from service.gateway.http.errors import Count
from service.gateway.http.routes import Authorize
from service.wire import Answer, Answering, ModelCard, Work


@dataclass(frozen=True, slots=True)
class Upstream:
    """The ingress, as the routes of an API see it.

    `authorize` raises for a request without a valid API key. `admit` admits a request or raises. `complete` and
    `stream` answer one work of it. `tokens` counts the tokens of a work's prompt. `count` gets every error.
    """

    authorize: Authorize
    card: Callable[[], Awaitable[ModelCard]]
    admit: Callable[[Request, Sequence[Work]], Awaitable[Admission]]
    complete: Callable[[Work, TokenCharge], Awaitable[Answer]]
    stream: Callable[[Work, TokenCharge], Answering]
    tokens: Callable[[Work, TokenCharge], Awaitable[int]]
    count: Count
    timeout_limit_s: float
