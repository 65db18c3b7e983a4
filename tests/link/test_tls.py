"""Links in a cluster whose Ray encrypts: both ends have certificates of one authority."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from service.errors import SettingsError
from service.ipc.connections import framed
from service.link.protocol import make_nonce
from service.messages.wire import Chunk
from service.rayserve.network import link_tls
from tests.link.certificates import Authority
from tests.link.doubles import Service, answer, answers_of_a_drain, replica_request


def contexts(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of a replica and of an ingress on a node with these variables."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    server, client = link_tls(ssl.PROTOCOL_TLS_SERVER), link_tls(ssl.PROTOCOL_TLS_CLIENT)
    assert server is not None
    assert client is not None
    return server, client


@pytest.fixture
def node(tmp_path: Path) -> dict[str, str]:
    return Authority(tmp_path, "cluster").node("node")


@pytest.fixture
async def encrypted(node: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    service = Service()
    service.tls = contexts(monkeypatch, node)
    await service.add("a")
    yield service
    for server in service.servers.values():
        await server.close()


async def test_requests_are_answered_over_tls(encrypted: Service) -> None:
    ingress = await encrypted.ingress()
    assert await ingress.complete(replica_request()) == answer("a")
    assert len([item async for item in ingress.stream(replica_request()) if isinstance(item, Chunk)]) == 3
    transport = ingress.links["a"]._transport
    assert transport.get_extra_info("cipher")
    assert transport.get_extra_info("peercert")
    [connection] = encrypted.servers["a"].connections
    assert connection._transport.get_extra_info("peercert")  # both ends have shown a certificate


async def test_answers_of_a_draining_replica_arrive_over_tls(encrypted: Service) -> None:
    assert await answers_of_a_drain(encrypted) == [answer("a")] * 3


async def test_a_certificate_of_another_authority_is_refused_at_both_ends(
    encrypted: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours = encrypted.tls
    theirs = contexts(monkeypatch, Authority(tmp_path, "other").node("stranger"))
    encrypted.tls = (ours[0], theirs[1])
    await encrypted.ingress()
    assert encrypted.linked == 0
    encrypted.tls = theirs[0], ours[1]
    await encrypted.add("b")
    seen = await (await encrypted.ingress()).update(encrypted.statuses())
    assert [status.failure is None for status in seen] == [True, False]
    assert "no link to b" in caplog.text


async def test_a_client_without_a_certificate_starts_nothing(encrypted: Service) -> None:
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.check_hostname, anonymous.verify_mode = False, ssl.CERT_NONE
    address = encrypted.servers["a"].address
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=anonymous)
    writer.write(framed(make_nonce()))
    with suppress(OSError):  # a TLS 1.3 client learns it when it first reads
        assert await reader.read() == b""
    writer.close()
    assert not encrypted.servers["a"].unproven


def test_links_are_plain_where_ray_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "0", "false"):
        monkeypatch.setenv("RAY_USE_TLS", value)
        assert link_tls(ssl.PROTOCOL_TLS_SERVER) is link_tls(ssl.PROTOCOL_TLS_CLIENT) is None


def test_a_missing_or_wrong_certificate_is_named(node: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    contexts(monkeypatch, node)
    monkeypatch.setenv("RAY_TLS_CA_CERT", "/nowhere.crt")
    with pytest.raises(SettingsError, match=r"RAY_TLS_CA_CERT is '/nowhere.crt': .*No such file"):
        link_tls(ssl.PROTOCOL_TLS_SERVER)
    monkeypatch.delenv("RAY_TLS_CA_CERT")
    with pytest.raises(SettingsError, match="RAY_USE_TLS is set, which needs RAY_TLS_CA_CERT"):
        link_tls(ssl.PROTOCOL_TLS_CLIENT)
