"""A service of one replica, for every test of links."""

from collections.abc import AsyncIterator

import pytest

from tests.link.doubles import Service


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    await made.add("a")
    yield made
    for server in made.servers.values():
        await server.close()
