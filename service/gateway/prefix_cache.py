"""POST /reset_prefix_cache, vLLM's route: every replica forgets the prompts that no running request uses."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from service.api.openapi import errors, model_docs, route_docs
from service.errors import CacheResetFailed
from service.gateway.admin import AdminBody, failures_of, in_words, read_body
from service.gateway.backend import Backend
from service.messages.replica_status import ResetPrefixCache

#: seconds after which a client may try again
_RETRY_S = 1.0


class ResetRequest(AdminBody):
    """The body: empty."""


class ResetAnswer(BaseModel):
    """The replicas whose prefix caches are reset."""

    replicas: list[str]


def add_cache_route(router: APIRouter, backend: Backend) -> None:
    """Adds the route to a router of `admin_router`. A repeated benchmark then finds no prompt in the cache."""
    docs = route_docs("Forget cached prompts, on all replicas", ResetAnswer, errors(401, 413, 422, 503))

    @router.post("/reset_prefix_cache", **docs, **model_docs(ResetRequest, {}))
    async def reset(request: Request) -> Response:
        await read_body(request, ResetRequest)
        results = await backend.control(ResetPrefixCache())
        if failures := failures_of(results):
            raise CacheResetFailed(
                f"{len(failures)} of {len(results)} replicas have failed: {in_words(failures)}", retry_after=_RETRY_S
            )
        return JSONResponse({"replicas": [result.replica for result in results]})
