"""Clients that leave: how they leave a service of known behaviour, and what is concluded from the replicas' counts."""

import json
from collections import Counter

import httpx
import pytest

from loadtest.chaos.churn import REST, ended
from loadtest.chaos.leave import KINDS, conclude, leave
from tests.loadtest.fake import Fake, serve

QUIET = dict.fromkeys(REST, 0.0)
BODY = {"mode": "static", "seed": 1, "stream": False}  # this seed leaves after two blocks


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_leaves_a_slow_answer(kind):
    """A stream is left between its blocks; other clients leave a service that takes two seconds for anything."""
    with serve(Fake(block_s=0.01, capacity_s=0.0 if kind == "mid-stream" else 2.0)) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            assert await leave(client, BODY, kind, stay_s=0.05) == "left"


async def test_who_is_answered_or_refused_in_time_has_not_left():
    for fake, said in ((Fake(), "answered"), (Fake(status=429), "429 busy: later")):
        with serve(fake) as url:
            async with httpx.AsyncClient(base_url=url) as client:
                assert await leave(client, BODY, "whole", 5.0) == said


async def test_ends_are_counted_by_reason():
    page = """# TYPE mrp_request_success counter
mrp_request_success_total{mode="static",finished_reason="abort",replica="a"} 3.0
mrp_request_success_total{mode="dynamic",finished_reason="abort",replica="a"} 4.0
mrp_request_success_total{mode="static",finished_reason="length",replica="b"} 2.0
mrp_other_total{finished_reason="abort"} 9.0
"""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=page))
    async with httpx.AsyncClient(base_url="http://service", transport=transport) as client:
        assert await ended(client) == {"abort": 7, "length": 2}


@pytest.mark.parametrize(
    ("ends", "rest", "counted", "broken"),
    [
        ({"whole: left": 6, "mid-stream: left": 3, "mid-stream: answered": 1}, {}, {"abort": 7, "stop": 1}, None),
        ({"whole: left": 9}, {}, {"abort": 7, "length": 2}, "2 of 9 requests went on without their clients"),
        ({"whole: left": 9}, {"num_requests_running": 1.0}, {"abort": 8}, "num_requests_running is 1"),
        ({"whole: left": 8, "whole: 0 ReadError": 1}, {}, {"abort": 8}, "unexpected ends: {'whole: 0 ReadError': 1}"),
        ({"whole: answered": 9}, {}, {"stop": 9}, "no client left"),
    ],
)
def test_what_is_concluded(ends, rest, counted, broken, capsys):
    status = conclude(Counter(ends), QUIET | rest, Counter(counted))
    said = json.loads(capsys.readouterr().out)
    assert (status, said["broken"]) == ((1, [broken]) if broken else (0, []))


def test_what_reached_no_engine_is_named(capsys):
    conclude(Counter({"whole: left": 9}), QUIET, Counter({"abort": 7}))
    assert json.loads(capsys.readouterr().out)["before_an_engine"] == 2
