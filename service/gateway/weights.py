"""The weights that may answer, and their update in all replicas by /admin/weights. The highest version wins.

Every request names the newest version that its ingress knows, so a restarted replica cannot answer with older weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from service.api.openapi import errors, model_docs, route_docs
from service.errors import NotReady, WeightsConflict, WeightUpdateFailed
from service.gateway.admin import AdminBody, CatchUp, failures_of, in_words, read_body
from service.gateway.backend import Backend, serving
from service.messages.replica_status import CheckWeights, ControlResult, ModelCard, Status, UpdateWeights
from service.messages.wire import Weights


class ServiceWeights:
    """The weights of a service, at one ingress.

    `base`: the setting `model`. `poll` asks the replicas for their states, and has `observe` called with the card.
    `newest`: None before the first update. `catch_up_s`: the pause of `CatchUp`.
    """

    def __init__(
        self, backend: Backend, base: str, poll: Callable[[], Awaitable[list[Status]]], catch_up_s: float
    ) -> None:
        self.newest: Weights | None = None
        self.poll = poll
        self._backend, self._base = backend, base
        self._updating = asyncio.Lock()
        self._catch_up = CatchUp("the newest weights", self._repeat, catch_up_s)

    def add(self, weights: Weights) -> None:
        if weights.version and weights.base == self._base and (self.newest is None or self.newest.older_than(weights)):
            self.newest = weights

    def observe(self, card: ModelCard) -> None:
        """Notes the weights of the service's card. Replicas that are behind get the newest, in the background."""
        self.add(card.weights)
        if self.newest is not None and (card.num_outdated or card.weights.older_than(self.newest)):
            self._catch_up.begin()

    async def update(self, order: UpdateWeightsRequest) -> list[ControlResult]:
        """Gives all replicas other weights.

        WeightsRefused if a replica cannot take them: nothing is changed then. WeightsConflict if newer ones answer.
        WeightUpdateFailed if some replicas could not take them after all: those answer nothing until they have.
        """
        async with self._updating:
            weights = self._next_weights(serving(await self.poll()), order)
            checked = await self._backend.control(CheckWeights(weights))
            for error in failures_of(checked).values():
                raise error
            weights = checked[0].weights
            results = await self._backend.control(UpdateWeights(weights))
            failures = failures_of(results)
            if len(failures) == len(results):
                raise next(iter(failures.values()))
            for result in results:
                self.add(result.weights)
            if self.newest is not None:
                await self._backend.announce(self.newest)
            with suppress(NotReady):
                await self.poll()  # requests from now on are checked by the new card
        if self.newest != weights:
            newest = self.newest.version if self.newest else 0
            raise WeightsConflict(f"version {newest} came in before version {weights.version}")
        if failures:
            raise WeightUpdateFailed(
                f"{len(failures)} of {len(results)} replicas could not take the weights. "
                f"They answer nothing until they have: {in_words(failures)}",
                retry_after=self._catch_up.pause_s,
            )
        return results

    def _next_weights(self, card: ModelCard, order: UpdateWeightsRequest) -> Weights:
        current, model, version = self.newest or card.weights, order.model, order.version
        if (version, model) == (current.version, current.model):
            return current
        if version is not None and version <= current.version:
            raise WeightsConflict(f"version is {version}, allowed is more than {current.version}", param="version")
        number = current.version + 1 if version is None else version
        return Weights(
            number,
            model,
            self._base,
            folders=(*current.all_folders, model),
            mrp_version=current.mrp_version,
            partial=order.partial,
            abort=order.mode == "abort",
        )

    async def _repeat(self) -> list[ControlResult]:
        return [] if self.newest is None else await self._backend.control(UpdateWeights(self.newest))


#: versions are whole numbers that JSON's readers keep exactly
_LAST = 2**53 - 1
_LONGEST = 4096


class UpdateWeightsRequest(AdminBody):
    """POST /admin/weights."""

    model: Annotated[str, Field(min_length=1, max_length=_LONGEST)] = Field(description="a folder or a hub name")
    version: Annotated[int, Field(ge=1, le=_LAST)] | None = Field(
        None, description="higher than that of the weights that answer; default: the next one"
    )
    partial: bool = Field(
        False, description="the folder has any of the weights; others stay. By default it has the backbone's, at least"
    )
    mode: Literal["wait", "abort"] = Field(
        "wait",
        description="wait: running requests complete with the old weights; abort: they restart with the new ones, and "
        "streams that have sent tokens end with an error",
    )


class NamedWeights(BaseModel):
    """A checkpoint, and its versions."""

    model: str
    version: int
    mrp_version: int


class ReplicaWeights(NamedWeights):
    """The weights of one replica. `behind`: whether newer ones are known, without which it answers nothing."""

    replica: str
    behind: bool


class KnownWeights(NamedWeights):
    """GET /admin/weights: the weights that answer, and the weights of every replica."""

    replicas: list[ReplicaWeights]


class ReplicaUpdate(NamedWeights):
    """The weights of one replica, and the seconds that it took to get them."""

    replica: str
    seconds: float


class UpdateWeightsAnswer(NamedWeights):
    """The answer of POST /admin/weights: from now on these weights answer alone."""

    replicas: list[ReplicaUpdate]


def add_weight_routes(router: APIRouter, weights: ServiceWeights) -> None:
    """Adds the routes to the router of the admin routes."""
    listed = {200: {"model": KnownWeights}, **errors(401, 503)}

    @router.get("/weights", summary="The weights of every replica", responses=listed)
    async def weights_of_all() -> Response:
        statuses = [status for status in await weights.poll() if status.failure is None]
        newest = weights.newest
        rows = [
            {
                "replica": status.replica,
                **_named(status.card.weights),
                "behind": newest is not None and status.card.weights.older_than(newest),
            }
            for status in statuses
        ]
        return JSONResponse({**_named(newest or statuses[0].card.weights), "replicas": rows})

    failed = errors(401, 409, 413, 422, 503)
    docs = route_docs("Other weights of the same shape, in all replicas", UpdateWeightsAnswer, failed)
    example = {"model": "/checkpoints/step-1000", "version": 1000}

    @router.post("/weights", **docs, **model_docs(UpdateWeightsRequest, example))
    async def update_weights(request: Request) -> Response:
        results = await weights.update(await read_body(request, UpdateWeightsRequest))
        rows = [
            {"replica": result.replica, **_named(result.weights), "seconds": round(result.seconds, 3)}
            for result in results
        ]
        return JSONResponse({**_named(results[0].weights), "replicas": rows})


def _named(weights: Weights) -> dict[str, Any]:
    return {"model": weights.model, "version": weights.version, "mrp_version": weights.mrp_version}
