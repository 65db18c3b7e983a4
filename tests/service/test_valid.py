"""Valid requests at the edges of what is allowed, to two replicas: no replica stops, no request moves."""

import pytest

from tests.gateway.fuzz.sent import EXPECTED, send
from tests.service.processes import processes_of
from tests.service.reading import until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(3600)]


async def test_thousands_of_valid_requests(pair_client, pair):
    before = processes_of(pair, "Generator")
    seen = await send(pair.url, 2000, seed=2000)
    print(f"\n{dict(seen)}")  # noqa: T201 - shown by -s
    assert set(seen) <= EXPECTED, "\n".join(seen)
    assert seen["answered"] > 1400  # on a slow machine more of the shortest time limits end
    assert until(pair_client, 200, replicas=2)
    assert processes_of(pair, "Generator") == before
