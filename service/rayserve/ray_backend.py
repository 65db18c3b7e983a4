"""`Backend` over Ray Serve: control calls go to all replicas by Serve's broadcasts, requests by links."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from service.errors import ControllerAway, EngineFailed, MrpServeError, NotReady, ScaledToZero
from service.link.requests import ReplicaLinks
from service.messages.replica_status import ControlCommand, ControlResult, Snapshot, Status
from service.messages.wire import Weights
from service.rayserve.serve_state import describe, describe_application, is_scaled_to_zero, last_line

_log = logging.getLogger(__name__)

#: seconds: the limit of a poll of the replicas, which takes all of it while one hangs. No request waits for that.
_CONTROL_S = 3.0
#: seconds that reading weights, or waiting for requests to finish, may take
_UPDATE_S = 3600.0
#: seconds after which a client may try again
_RETRY_S = 1.0

_T = TypeVar("_T")


class RayBackend:
    """Implements `Backend` over the deployments of one application.

    `links`: the links to the replicas. `replicas`, `ingresses`: Serve's handles for control calls to all of them.
    `trainer`: the handle of MRP's trainer, which has metrics, too.
    `scales_to_zero`: whether the service may have no replica on purpose.
    """

    def __init__(
        self,
        links: ReplicaLinks,
        replicas: DeploymentHandle[Any],
        ingresses: DeploymentHandle[Any],
        trainer: DeploymentHandle[Any] | None = None,
        scales_to_zero: bool = False,
    ) -> None:
        self._links = links
        self.encode, self.stream = links.encode, links.stream
        self._replicas, self._ingresses, self._trainer = replicas, ingresses, trainer
        self._scales_to_zero = scales_to_zero
        self._statuses: list[Status] = []
        self._snapshots: list[Snapshot] = []
        self._last_error = self._silence = ""
        self._reader = ThreadPoolExecutor(1, "serve-status")  # one thread, since a hanging controller keeps it

    def note_error(self, error: MrpServeError) -> None:
        if isinstance(error, EngineFailed):
            self._last_error = f"; before, {error.message}"

    async def statuses(self) -> list[Status]:
        """One status for every replica that answers. If none does: NotReady with Serve's reason, or ScaledToZero.

        One replica that hangs blocks the answers of all. Until Serve has removed it, the last statuses are returned.
        So they are while Serve does not answer, either, if there is a link; otherwise ControllerAway.
        """
        try:
            answers = await _answers(self._replicas, "status")
            self._silence = next((_brief(answer) for answer in answers if isinstance(answer, Exception)), "")
            if statuses := [answer for answer in answers if isinstance(answer, Status)]:
                self._last_error = ""
                self._statuses = await self._links.update(statuses)
                if self._statuses:
                    return self._statuses
        except TimeoutError:
            self._silence = f"does not answer within {_CONTROL_S:g} s"
            _log.warning("a replica %s", self._silence)
            if self._statuses:
                return self._last_statuses()
        try:
            async with asyncio.timeout(_CONTROL_S):
                error = await asyncio.get_running_loop().run_in_executor(self._reader, self._no_replica)
        except Exception as problem:  # noqa: BLE001 - whatever Serve's trouble is, links may work
            _log.warning("Serve's controller does not answer: %s", type(problem).__name__)
            statuses = self._last_statuses()
            if any(status.reachable for status in statuses):
                return statuses
            reason = "no replica can generate: neither a replica nor Serve's controller responds"
            raise ControllerAway(reason, retry_after=5.0) from None
        self._statuses = []
        raise error

    def _last_statuses(self) -> list[Status]:
        return [replace(status, reachable=self._links.reaches(status.replica)) for status in self._statuses]

    def _no_replica(self) -> NotReady:
        """Serve's reason why no replica answers. Blocks."""
        application = serve.status().applications.get(self._replicas.app_name)
        deployment = application.deployments.get(self._replicas.deployment_name) if application else None
        if deployment is None:
            return NotReady(f"{describe_application(application)}{self._last_error}", retry_after=5.0)
        if self._scales_to_zero and is_scaled_to_zero(deployment):
            return ScaledToZero("no replica runs without requests; the next request starts one", retry_after=_RETRY_S)
        return NotReady(f"{describe(deployment, self._silence)}{self._last_error}", retry_after=5.0)

    async def control(self, command: ControlCommand) -> list[ControlResult]:
        try:
            return await of_all(self._replicas, "control", ControlResult, command, timeout_s=_UPDATE_S)
        except TimeoutError:
            raise command.failed(f"a replica has not answered within {_UPDATE_S:g} s") from None

    async def announce(self, weights: Weights) -> None:
        """Tells all ingresses that older weights may not answer. A hanging one gets the version from the replicas."""
        try:
            await of_all(self._ingresses, "require_weights", type(None), weights)
        except TimeoutError:
            _log.warning("an ingress does not answer within %s s", _CONTROL_S)

    async def snapshots(self, ingress: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        """The metrics of all processes that answer. While a replica hangs, the last metrics of all replicas."""
        handles = [handle for handle in (self._ingresses, self._replicas, self._trainer) if handle is not None]
        calls = (of_all(handle, "snapshot", Snapshot) for handle in handles)
        ingresses, replicas, *trainers = await asyncio.gather(*calls, return_exceptions=True)
        self._snapshots = _or_before(replicas, self._snapshots)
        trainer = [snapshot for answers in trainers for snapshot in _or_before(answers, [])]
        return [*(_or_before(ingresses, []) or [ingress]), *trainer], self._snapshots


async def of_all(
    handle: DeploymentHandle[Any], method: str, kind: type[_T], *args: object, timeout_s: float = _CONTROL_S
) -> list[_T]:
    """The answers of all replicas of a deployment, dead ones left out. TimeoutError if one does not answer."""
    answers = await _answers(handle, method, *args, timeout_s=timeout_s)
    return [answer for answer in answers if isinstance(answer, kind)]


async def _answers(
    handle: DeploymentHandle[Any], method: str, *args: object, timeout_s: float = _CONTROL_S
) -> list[Any]:
    """The answer of each replica of a deployment, or its exception. TimeoutError if one does not answer."""
    try:
        answers: list[Any] = await handle.broadcast(method, *args).results_async(
            timeout_s=timeout_s, return_exceptions=True
        )
    except (RayServeException, RayError) as error:
        _log.debug("%s of %s: %r", method, handle.deployment_name, error)
        return [error]
    return answers


def _brief(error: Exception) -> str:
    """Why a replica did not answer, in one line. Of gRPC's errors the details, which name the address."""
    details = getattr(error, "details", None)
    text = details() if callable(details) else last_line(str(error))
    return f"cannot be asked: {type(error).__name__}: {text}"


def _or_before(answers: list[_T] | BaseException, before: list[_T]) -> list[_T]:
    """The answers, or the previous ones if a process did not answer in time."""
    if isinstance(answers, list):
        return answers
    if isinstance(answers, TimeoutError):
        return before
    raise answers
