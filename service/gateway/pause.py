"""Pause and sleep of all replicas, by routes under /admin. A trainer uses them between two weight updates.

Halted replicas are healthy, and requests wait. Every change has a number, and the highest one counts. A replica that
starts later gets the newest state within seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from service.api.openapi import errors, model_docs, route_docs
from service.errors import GenerationChangeFailed, NotReady
from service.gateway.admin import AdminBody, CatchUp, failures_of, in_words, read_body
from service.gateway.backend import Backend
from service.messages.replica_status import ControlResult, PauseState, SetPause, Status


class ServicePause:
    """The state of the service's replicas, at one ingress. `poll` asks them, and then `observe` is called.

    `catch_up_s`: the pause of `CatchUp`.
    """

    def __init__(self, backend: Backend, poll: Callable[[], Awaitable[list[Status]]], catch_up_s: float) -> None:
        self.newest = PauseState()
        self.poll = poll
        self._backend = backend
        self._changing = asyncio.Lock()
        self._catch_up = CatchUp("the present pause or sleep", self._repeat, catch_up_s)

    def observe(self, statuses: Sequence[Status]) -> None:
        """Notes the newest state. Replicas that have missed it get it, in the background."""
        states = [status.pause for status in statuses if status.failure is None]
        for state in states:
            self._note(state)
        if any(state.older_than(self.newest) for state in states):
            self._catch_up.begin()

    async def change(
        self, *, paused: bool | None = None, sleep_level: int | None = None, wait: bool = False
    ) -> list[ControlResult]:
        """Gives all replicas a new state. None: as it is. `wait`: running requests finish before a pause.

        A deeper sleep stays. GenerationChangeFailed if replicas could not take it, or another change came first.
        """
        async with self._changing:
            await self.poll()
            level = self.newest.sleep_level
            state = PauseState(
                self.newest.number + 1,
                self.newest.paused if paused is None else paused,
                level if sleep_level is None else sleep_level and max(sleep_level, level),
            )
            results = await self._backend.control(SetPause(state, wait))
            for result in results:
                self._note(result.pause)
            if failures := failures_of(results):
                raise GenerationChangeFailed(
                    f"{len(failures)} of {len(results)} replicas stay as they were: {in_words(failures)}",
                    retry_after=self._catch_up.pause_s,
                )
            if self.newest != state:
                raise GenerationChangeFailed(
                    "another change came first; send the request again", retry_after=self._catch_up.pause_s
                )
            with suppress(NotReady):
                await self.poll()  # the admission controller knows the state from now on
            return results

    def _note(self, state: PauseState) -> None:
        if self.newest.older_than(state):
            self.newest = state

    async def _repeat(self) -> list[ControlResult]:
        return await self._backend.control(SetPause(self.newest))


class PauseRequest(AdminBody):
    """POST /admin/pause."""

    mode: Literal["keep", "wait"] = Field(
        "keep", description="keep: running requests stay as they are, with their KV; wait: they finish first"
    )


class SleepRequest(AdminBody):
    """POST /admin/sleep."""

    level: Annotated[int, Field(ge=1, le=2)] = Field(
        1, description="1: the memory of the KV cache is given back; 2: that of the weights, too"
    )


class NoFields(AdminBody):
    """The body of POST /admin/continue and /admin/wake_up: empty."""


class ReplicaGeneration(BaseModel):
    """The state of one replica."""

    replica: str
    paused: bool
    sleep_level: int


class ServiceGenerationAnswer(BaseModel):
    """The state of the service, and the state of every replica."""

    paused: bool
    sleep_level: int
    replicas: list[ReplicaGeneration]


def add_pause_routes(router: APIRouter, service: ServicePause) -> None:
    """Adds the routes to the router of the admin routes."""
    listed = {200: {"model": ServiceGenerationAnswer}, **errors(401, 503)}

    @router.get("/generation", summary="Whether the replicas are paused or asleep", responses=listed)
    async def states() -> Response:
        statuses = [status for status in await service.poll() if status.failure is None]
        return _answer(service.newest, {status.replica: status.pause for status in statuses})

    async def change(**fields: Any) -> Response:
        results = await service.change(**fields)
        return _answer(service.newest, {result.replica: result.pause for result in results})

    @router.post("/pause", **_docs("Decode nothing until /admin/continue; requests wait", PauseRequest))
    async def pause(request: Request) -> Response:
        order = await read_body(request, PauseRequest)
        return await change(paused=True, wait=order.mode == "wait")

    @router.post("/continue", **_docs("Go on after /admin/pause", NoFields))
    async def go_on(request: Request) -> Response:
        await read_body(request, NoFields)
        return await change(paused=False)

    @router.post("/sleep", **_docs("Give memory back until /admin/wake_up; requests wait", SleepRequest))
    async def sleep(request: Request) -> Response:
        order = await read_body(request, SleepRequest)
        return await change(sleep_level=order.level)

    @router.post("/wake_up", **_docs("Take the memory again after /admin/sleep", NoFields))
    async def wake_up(request: Request) -> Response:
        await read_body(request, NoFields)
        return await change(sleep_level=0)


def _answer(state: PauseState, replicas: Mapping[str, PauseState]) -> Response:
    rows = [{"replica": name, **_fields(replica)} for name, replica in replicas.items()]
    return JSONResponse({**_fields(state), "replicas": rows})


def _fields(state: PauseState) -> dict[str, Any]:
    return {"paused": state.paused, "sleep_level": state.sleep_level}


def _docs(summary: str, body: type[BaseModel]) -> dict[str, Any]:
    return route_docs(summary, ServiceGenerationAnswer, errors(401, 413, 422, 503)) | model_docs(body, {})
