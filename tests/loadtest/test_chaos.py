"""The outcomes that chaos scripts record, with a service of known behaviour, and the crowd before attacks."""

import httpx
import pytest

from loadtest.chaos import attacks
from loadtest.generator.protocol import BROKEN_OFF
from loadtest.harness import ask
from tests.loadtest.fake import Fake, serve


async def asked(fake, **body):
    with serve(fake) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            return await ask(client, {"mode": "static", "stream": True} | body)


@pytest.mark.parametrize(("stream", "gaps"), [(True, 3), (False, 1)])
async def test_an_answer(stream, gaps):
    outcome = await asked(Fake(block_s=0.05), stream=stream)
    assert outcome.ok
    assert (len(outcome.tokens), outcome.finish, len(outcome.gaps)) == (8, "length", gaps)
    assert sum(outcome.gaps) <= outcome.total_s
    if stream:
        assert min(outcome.gaps) > 0.02


async def test_a_refusal():
    outcome = await asked(Fake(status=429))
    assert (outcome.status, outcome.error, outcome.retry_after, outcome.ok) == (429, "busy: later", 0.2, False)


async def test_a_stream_that_breaks():
    outcome = await asked(Fake(breaks=True))
    assert not outcome.ok
    assert outcome.error == BROKEN_OFF or outcome.status == 0


async def test_an_honest_crowd_reads_its_streams_before_the_first_attack(monkeypatch):
    monkeypatch.setattr(attacks, "_CROWD", 4)
    fake = Fake()
    with serve(fake) as url:
        await attacks.warm_up(url)
    assert [body["stream"] for _, body in fake.asked] == [True] * 4
    with serve(Fake(status=429)) as url, pytest.raises(RuntimeError, match="4 of 4 streams were not answered"):
        await attacks.warm_up(url)
