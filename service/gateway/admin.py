"""/admin/weights: which weights answer, and their exchange. These routes have keys of their own."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.admission.keys import KeyRing
from service.errors import InvalidRequest, Unauthorized
from service.gateway.exchange import WeightsExchange
from service.gateway.http.middleware import given_key
from service.gateway.http.openapi import OPERATION, errors
from service.gateway.http.parse import explain, parse_json
from service.settings import nearest
from service.wire import Weights

#: versions are whole numbers that JSON's readers keep exactly
_LAST = 2**53 - 1
_LONGEST = 4096


class ExchangeRequest(BaseModel):
    """POST /admin/weights."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: Annotated[str, Field(min_length=1, max_length=_LONGEST)] = Field(description="a folder or a hub name")
    version: Annotated[int, Field(ge=1, le=_LAST)] | None = Field(
        None, description="higher than that of the weights that answer; default: the next one"
    )


class ReplicaWeights(BaseModel):
    """The weights of one replica. `behind`: whether newer ones are known, without which it answers nothing."""

    replica: str
    model: str
    version: int
    behind: bool


class KnownWeights(BaseModel):
    """GET /admin/weights: the weights that answer, and those of every replica."""

    model: str
    version: int
    replicas: list[ReplicaWeights]


class ReplicaExchange(BaseModel):
    """The weights of one replica, and the seconds that it took to get them."""

    replica: str
    model: str
    version: int
    seconds: float


class ExchangeAnswer(BaseModel):
    """The answer of POST /admin/weights: from now on these weights answer alone."""

    model: str
    version: int
    replicas: list[ReplicaExchange]


def admin_router(exchange: WeightsExchange, keys: KeyRing) -> APIRouter:
    """The routes, to be mounted at the root. They need one of these keys."""

    def authorize(request: Request) -> None:
        given = given_key(request.headers)
        if keys.find(given) is None:
            problem = "wrong" if given else "missing"
            raise Unauthorized(f"the key of `admin_keys` is {problem}; send `Authorization: Bearer <key>`")

    router, routes = APIRouter(prefix="/admin", tags=[OPERATION], dependencies=[Depends(authorize)]), _Routes(exchange)
    listed = {200: {"model": KnownWeights}, **errors(401, 503)}
    router.get("/weights", summary="The weights of every replica", responses=listed)(routes.listed)
    router.post("/weights", **_docs())(routes.exchanged)
    return router


class _Routes:
    def __init__(self, exchange: WeightsExchange) -> None:
        self._exchange = exchange

    async def listed(self) -> Response:
        statuses = [status for status in await self._exchange.statuses() if status.failure is None]
        newest = self._exchange.newest
        replicas = [(status.replica, status.card.weights) for status in statuses]
        rows = [
            {"replica": name, **_named(own), "behind": newest is not None and own.older_than(newest)}
            for name, own in replicas
        ]
        return JSONResponse({**_named(newest or replicas[0][1]), "replicas": rows})

    async def exchanged(self, request: Request) -> Response:
        wanted = _parse(parse_json(await request.body()))
        told = await self._exchange.to(wanted.model, wanted.version)
        rows = [{"replica": one.replica, **_named(one.weights), "seconds": round(one.seconds, 3)} for one in told]
        return JSONResponse({**_named(told[0].weights), "replicas": rows})


def _parse(body: dict[str, Any]) -> ExchangeRequest:
    for name in body:
        if name not in ExchangeRequest.model_fields:
            raise InvalidRequest(
                f"{name[:80]!r} is not a field; {nearest(name, ExchangeRequest.model_fields)}", param=name
            )
    if "model" not in body:
        raise InvalidRequest("model is missing", param="model")
    try:
        return ExchangeRequest.model_validate(body)
    except ValidationError as error:
        raise explain(error.errors(include_url=False)) from None


def _named(weights: Weights) -> dict[str, Any]:
    return {"model": weights.model, "version": weights.version}


@cache
def _docs() -> dict[str, Any]:
    """FastAPI's arguments. The result is cached and must not be changed."""
    example = {"model": "/checkpoints/step-1000", "version": 1000}
    content = {"application/json": {"schema": ExchangeRequest.model_json_schema(), "example": example}}
    return {
        "summary": "Other weights of the same shape, in all replicas",
        "response_class": JSONResponse,
        "responses": {200: {"model": ExchangeAnswer}, **errors(401, 409, 413, 422, 503)},
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }
