"""Authentication of links: foreign programs at a replica's port, and foreign clients of a replica."""

import asyncio
import pickle
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from msgspec import structs

from service.errors import ReplicaLost
from service.ipc.connections import LONGEST, framed
from service.link import requests as link_requests
from service.link import server as link_server
from service.link.protocol import AT_INGRESS, NONCE, CallEnd, CancelCall, ReplicaCall, make_nonce, make_proof
from service.messages.replica_status import Address, Status
from tests.gateway.helpers import eventually
from tests.link.doubles import CARD, Service, answer, replica_request

ForeignServer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack("!I", await reader.readexactly(4))
    return await reader.readexactly(length)


@asynccontextmanager
async def foreign_server(server: ForeignServer, *, gets_call: bool = False) -> AsyncIterator[Status]:
    """The status of a replica whose port another program has taken. An ingress sends it a nonce, and no more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await server(reader, writer)
            sent_by_ingress.append(await reader.read())
        finally:
            writer.close()

    sent_by_ingress: list[bytes] = []
    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        yield Status("b", None, CARD, Address("127.0.0.1", port, "secret"))
        await eventually(lambda: bool(sent_by_ingress))
        assert gets_call or sent_by_ingress == [b""] * len(sent_by_ingress)


# --- foreign programs at a replica's port ------------------------------------------------------------


async def sends_a_pickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await frame(reader)
    writer.write(framed(pickle.dumps("no message")))


async def sends_a_wrong_proof(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    nonce = await frame(reader)
    writer.write(framed(nonce + make_proof("another", "replica", nonce, nonce)))


async def sends_the_nonce_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    nonce = await frame(reader)
    writer.write(framed(nonce + nonce))


async def replays(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends what the replica has sent on an earlier connection."""
    await frame(reader)
    nonces = bytes(NONCE), make_nonce()
    writer.write(framed(nonces[1] + make_proof("secret", "replica", *nonces)))


async def sends_the_proof_of_an_ingress(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    nonces = await frame(reader), make_nonce()
    writer.write(framed(nonces[1] + make_proof("secret", "ingress", *nonces)))


@pytest.mark.parametrize(
    "server", [sends_a_pickle, sends_a_wrong_proof, sends_the_nonce_back, replays, sends_the_proof_of_an_ingress]
)
async def test_a_foreign_server_is_logged_once_and_not_used(
    service: Service, caplog: pytest.LogCaptureFixture, server: ForeignServer
) -> None:
    ingress = await service.ingress()
    async with foreign_server(server) as status:
        for _ in range(3):
            await ingress.update([*service.statuses(), status])
            service.now += 60.0
        assert caplog.text.count("is not b: ") == 1
        assert "secret" not in caplog.text.replace("the replica's secret", "")
        assert service.linked == 1
    moved = replace(status, address=service.servers["a"].address)
    await ingress.update([*service.statuses(), moved])
    assert service.linked == 2


async def test_a_silent_server_is_tried_again_later(
    service: Service, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await frame(reader)

    monkeypatch.setattr(link_requests, "_OPEN_S", 0.05)
    ingress = await service.ingress()
    async with foreign_server(silent) as status:
        for _ in range(3):
            statuses = await ingress.update([*service.statuses(), status])
            assert [status.failure is None for status in statuses] == [True, False]
        assert caplog.text.count("no link to b") == 1


@pytest.mark.parametrize(
    "sends",
    [
        framed(b"\xc1"),
        framed(AT_INGRESS.content([AT_INGRESS.encode(CancelCall(0))])),  # not for a replica to send
        struct.pack("!I", LONGEST + 1),
    ],
)
async def test_a_malformed_message_of_a_replica_ends_its_link_alone(
    service: Service, caplog: pytest.LogCaptureFixture, sends: bytes
) -> None:
    async def authenticated(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonces = await frame(reader), make_nonce()
        writer.write(framed(nonces[1] + make_proof("secret", "replica", *nonces)))
        await frame(reader)  # the ingress's proof
        await frame(reader)  # a call
        writer.write(sends)

    ingress = await service.ingress()
    async with foreign_server(authenticated, gets_call=True) as status:
        await ingress.update([status])
        with pytest.raises(ReplicaLost):
            await ingress.complete(replica_request())
        assert caplog.text.count("a connection with ") == 1
        await ingress.update(service.statuses())
        assert await ingress.complete(replica_request()) == answer("a")


# --- foreign clients of a replica --------------------------------------------------------------------


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    address = service.servers["a"].address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def authenticate(service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    nonce, secret = make_nonce(), service.servers["a"].address.secret
    writer.write(framed(nonce))
    reply = await frame(reader)
    assert reply[NONCE:] == make_proof(secret, "replica", nonce, reply[:NONCE])
    writer.write(framed(make_proof(secret, "ingress", nonce, reply[:NONCE])))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(120):
            return not await reader.read()
    except ConnectionError:
        return True


CALL = framed(AT_INGRESS.content([AT_INGRESS.encode(ReplicaCall(0, "stream", replica_request()))]))


@pytest.mark.parametrize(
    "sent",
    [
        framed(b"0" * 64) + CALL,
        framed(b"") + CALL,
        struct.pack("!I", NONCE + 1),
        struct.pack("!I", 2**32 - 1) + b"0" * 100,
        framed(pickle.dumps("no message")),
        CALL,
    ],
)
async def test_a_client_without_a_nonce_is_disconnected_and_starts_nothing(
    service: Service, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        async with connected(service) as (reader, writer):
            writer.write(sent)
            assert await is_closed(reader)
    assert service.replicas["a"].started == 0
    assert caplog.text.count("did not prove") == 1
    assert not service.servers["a"].unproven


@pytest.mark.parametrize("proof", ["of another secret", "of the replica"])
async def test_a_wrong_proof_starts_nothing_and_the_secret_is_never_sent(service: Service, proof: str) -> None:
    async with connected(service) as (reader, writer):
        nonce, address = make_nonce(), service.servers["a"].address
        writer.write(framed(nonce))
        reply = await frame(reader)
        wrong = reply[NONCE:] if proof == "of the replica" else make_proof("another", "ingress", nonce, reply[:NONCE])
        writer.write(framed(wrong) + CALL)
        assert await is_closed(reader)
        assert address.secret.encode() not in reply
        assert bytes.fromhex(address.secret) not in reply
    assert service.replicas["a"].started == 0
    assert address.secret not in repr(address)


async def test_a_malformed_message_of_an_ingress_ends_its_link_alone(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    ingress = await service.ingress()
    other = asyncio.create_task(ingress.complete(replica_request("wait")))
    async with connected(service) as (reader, writer):
        await authenticate(service, reader, writer)
        writer.write(framed(AT_INGRESS.content([AT_INGRESS.encode(CallEnd(0))])))  # not for an ingress to send
        assert await is_closed(reader)
    assert caplog.text.count("a connection with ") == 1
    service.replicas["a"].may_go_on.set()
    assert await other == answer("a")


async def test_a_client_without_a_proof_in_time_is_disconnected(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(service) as other:
        await authenticate(service, *other)
        monkeypatch.setattr(link_server, "_PROVEN_S", 0.5)
        async with connected(service) as (silent, _), connected(service) as (half, writer):
            writer.write(framed(make_nonce()))
            await frame(half)
            assert await is_closed(silent)
            assert await is_closed(half)
        other[1].write(CALL)
        async with asyncio.timeout(120):
            while b"a" not in await frame(other[0]):
                """A heartbeat."""


async def test_many_unproven_connections_keep_no_ingress_out(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_server, "_UNPROVEN", 3)
    address = service.servers["a"].address
    connections = [await asyncio.open_connection(address.host, address.port) for _ in range(20)]
    await eventually(lambda: len(service.servers["a"].unproven) == 3)
    assert await (await service.ingress()).complete(replica_request()) == answer("a")
    assert [await is_closed(reader) for reader, _ in connections[:17]] == [True] * 17
    for _, writer in connections:
        writer.close()


async def test_frames_arrive_whole_in_any_pieces(service: Service) -> None:
    async with connected(service) as (reader, writer):
        await authenticate(service, reader, writer)
        calls = [
            ReplicaCall(7, "stream", structs.replace(replica_request(), stream_interval=16)),
            ReplicaCall(8, "encode", replica_request()),
        ]
        for byte in framed(AT_INGRESS.content([AT_INGRESS.encode(call) for call in calls])):
            writer.write(bytes([byte]))
            await writer.drain()
        messages = []
        while len(messages) < 4:
            messages += AT_INGRESS.decode(await frame(reader))
    assert {(type(item).__name__, item.number) for item in messages} == {
        ("ReplicaItem", 7),
        ("CallEnd", 7),
        ("ReplicaItem", 8),
        ("CallEnd", 8),
    }
