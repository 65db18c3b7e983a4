"""Valid requests at the edges of what is allowed, to two replicas: no replica stops, no request moves."""

import pytest

from tests.gateway.fuzz.sent import EXPECTED, send
from tests.service.processes import processes_of
from tests.service.reading import until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(3600)]


async def test_thousands_of_valid_requests(visitor, house):
    before = processes_of(house, "Generator")
    seen = await send(house.url, 2000, seed=2000)
    print(f"\n{dict(seen)}")  # noqa: T201 - shown by -s
    assert set(seen) <= EXPECTED, "\n".join(seen)
    assert seen["answered"] > 1400  # on a slow machine more of the shortest time limits end
    assert until(visitor, 200, replicas=2)
    assert processes_of(house, "Generator") == before
