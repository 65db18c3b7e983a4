"""A backend over one generator in this process, without Ray."""

from service.errors import InvalidRequest, MrpServeError
from service.ipc.connections import Unsendable
from service.link.protocol import AT_REPLICA, ReplicaCall
from service.messages.replica_status import ControlCommand, ControlResult, Snapshot, Status
from service.messages.wire import Encoded, Failure, ReplicaRequest, ReplicaStream, Weights
from service.replica.replica import Replica


class LocalBackend:
    """One generator in this process."""

    def __init__(self, generator: Replica) -> None:
        self._generator = generator
        #: the requests for answers so far
        self.requests: list[ReplicaRequest] = []

    async def encode(self, request: ReplicaRequest) -> Encoded | Failure:
        return await self._generator.encode(request)

    def stream(self, request: ReplicaRequest) -> ReplicaStream:
        self.requests.append(request)
        return self._generator.stream(request)

    def note_error(self, error: MrpServeError) -> None:
        """Nobody asks for it later."""

    async def statuses(self) -> list[Status]:
        return [self._generator.status()]

    async def control(self, command: ControlCommand) -> list[ControlResult]:
        return [await self._generator.control(command)]

    async def announce(self, weights: Weights) -> None:
        """There is one ingress."""

    async def snapshots(self, ingress: Snapshot) -> tuple[list[Snapshot], list[Snapshot]]:
        return [ingress], [self._generator.snapshot()]


class LinkedBackend(LocalBackend):
    """The same, whose requests come through the bytes of a link."""

    async def encode(self, request: ReplicaRequest) -> Encoded | Failure:
        return await super().encode(_crossed(request))

    def stream(self, request: ReplicaRequest) -> ReplicaStream:
        return super().stream(_crossed(request))


def _crossed(request: ReplicaRequest) -> ReplicaRequest:
    try:
        encoded = AT_REPLICA.encode(ReplicaCall.of(0, "stream", request))
    except Unsendable as error:
        raise InvalidRequest("no replica can be sent this") from error
    [call] = AT_REPLICA.decode(AT_REPLICA.content([encoded]))
    assert isinstance(call, ReplicaCall)
    return call.whole_request()
