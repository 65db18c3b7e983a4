"""Which outcomes the chaos scripts record at a service of known behaviour, and what they conclude."""

import json
from collections import Counter

import httpx
import pytest

from loadtest.chaos.bad_input import fault
from loadtest.chaos.churn import REST, ended
from loadtest.chaos.faults import Tally
from loadtest.chaos.leave import KINDS, ask_and_leave, conclude
from loadtest.generator.protocol import BROKEN_OFF
from loadtest.harness import Outcome, ask
from tests.loadtest.fake import Fake, serve

BODY = {"mode": "static", "seed": 1, "stream": False}  # this seed leaves after two blocks


async def outcome_at(fake, **fields):
    with serve(fake) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            return await ask(client, BODY | fields)


# --- outcomes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stream", "gaps"), [(True, 3), (False, 1)])
async def test_an_answer(stream, gaps):
    outcome = await outcome_at(Fake(block_s=0.05), stream=stream)
    assert outcome.ok
    assert (len(outcome.tokens), outcome.finish, len(outcome.gaps)) == (8, "length", gaps)
    assert sum(outcome.gaps) <= outcome.total_s
    assert not stream or min(outcome.gaps) > 0.02


async def test_a_refusal_and_a_broken_stream():
    refused = await outcome_at(Fake(status=429))
    assert (refused.status, refused.error, refused.retry_after, refused.ok) == (429, "busy: later", 0.2, False)
    broken = await outcome_at(Fake(breaks=True), stream=True)
    assert not broken.ok
    assert broken.error == BROKEN_OFF or broken.status == 0


# --- bad input ---------------------------------------------------------------------------------------

ERROR = {"error": {"code": "invalid_request", "message": "it is wrong"}}


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.Response(422, json=ERROR), ""),
        (httpx.Response(200, json={}), "status 200"),
        (httpx.Response(422, text="no"), "422 without an error object"),
        (httpx.Response(422, json={"error": {"code": "x", "message": ""}}), "422 does not say why"),
    ],
)
def test_a_refusal_is_a_4xx_with_a_reason(response, message):
    assert fault(response) == message


# --- faults ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome(200, [1, 2], "a", finish="length", gaps=[0.1, 0.2], total_s=0.3), "right"),
        (Outcome(200, [1, 3], "a", finish="length"), "different"),
        (Outcome(0, error="ConnectError: refused"), "refused"),
        (Outcome(200, [1], error="replica_lost: in the stream"), "clear"),
        (Outcome(500, error="Internal Server Error"), "unclear"),
        (Outcome(200, [1], error=BROKEN_OFF), "unclear"),
    ],
)
def test_an_outcome_beside_a_fault_is_of_one_kind(outcome, kind):
    tally = Tally()
    tally.count({"stream": True}, Outcome(200, [1, 2], "a", finish="length"), outcome)
    amounts = {"right": tally.right, "different": tally.different, "refused": tally.refused}
    amounts |= {"clear": tally.clear.total(), "unclear": tally.unclear.total()}
    assert {name: amount for name, amount in amounts.items() if amount} == {kind: 1}


# --- clients that leave --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_leaves_a_slow_answer(kind):
    """A stream is left between its blocks; other clients leave a service that takes two seconds for anything."""
    with serve(Fake(block_s=0.01, capacity_s=0.0 if kind == "mid-stream" else 2.0)) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            assert await ask_and_leave(client, BODY, kind, stay_s=0.05) == "left"


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
    ("ends", "rest", "counts", "broken"),
    [
        ({"whole: left": 6, "mid-stream: left": 3, "mid-stream: answered": 1}, {}, {"abort": 7, "stop": 1}, None),
        ({"whole: left": 9}, {}, {"abort": 7, "length": 2}, "2 of 9 requests went on without their clients"),
        ({"whole: left": 9}, {"num_requests_running": 1.0}, {"abort": 8}, "num_requests_running is 1"),
        ({"whole: answered": 9}, {}, {"stop": 9}, "no client left"),
    ],
)
def test_no_request_may_go_on_without_its_client(ends, rest, counts, broken, capsys):
    status = conclude(Counter(ends), dict.fromkeys(REST, 0.0) | rest, Counter(counts))
    result = json.loads(capsys.readouterr().out)
    assert (status, result["broken"]) == ((1, [broken]) if broken else (0, []))
