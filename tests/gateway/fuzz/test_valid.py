"""Valid requests over HTTP, sixteen at a time: answers or documented refusals, and an engine that goes on.

`valid.py` draws the requests. The normal run sends some dozens, `-m slow` 2,000.
"""

import os

import pytest

from tests.gateway.fuzz.sent import EXPECTED, send


async def test_some_dozens_of_valid_requests(url, generator):
    seen = await send(url, 48, seed=1)
    assert set(seen) <= EXPECTED, "\n".join(seen)
    assert seen["answered"] > 36
    assert generator.status().failure is None


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_thousands_of_valid_requests(url, generator):
    """MRP_FUZZ_SEED draws others."""
    seen = await send(url, 2000, seed=int(os.environ.get("MRP_FUZZ_SEED", "1000")))
    print(f"\n{dict(seen)}")  # noqa: T201
    assert set(seen) <= EXPECTED, "\n".join(seen)
    assert seen["answered"] > 1600
    assert generator.status().failure is None
