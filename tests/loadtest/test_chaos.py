"""Which outcomes the chaos scripts record at a service of known behaviour, and what they conclude."""

import httpx
import pytest

from loadtest.chaos.bad_input import fault
from loadtest.chaos.faults import Tally
from loadtest.generator.protocol import BROKEN_OFF, Observation, Route
from loadtest.harness import ask
from tests.loadtest.fake import Fake, serve

BODY = {"mode": "static", "seed": 1, "stream": False}  # this seed leaves after two blocks


async def seen_at(fake, **fields):
    with serve(fake) as url:
        async with httpx.AsyncClient(base_url=url) as client:
            return await ask(client, BODY | fields)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_a_refusal_and_a_broken_stream(stream):
    answer = await seen_at(Fake(block_s=0.05), stream=stream)
    assert (answer.ok, len(answer.token_ids), answer.finish, len(answer.blocks)) == (True, 8, "length", 1 + stream)
    refusal = await seen_at(Fake(status=429), stream=stream)
    assert (refusal.status, refusal.error, refusal.retry_after, refusal.ok) == (429, "busy: later", 0.2, False)
    broken = await seen_at(Fake(breaks=True), stream=True)
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


def seen(status, token_ids=(), **fields):
    stream = Route("/generate", stream=True, openai=False)
    return Observation(stream, "static", 0.0, 0.0, status=status, token_ids=[*token_ids], **fields)


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (seen(200, [1, 2]), "right"),
        (seen(200, [1, 3]), "different"),
        (seen(0, error="ConnectError: refused"), "refused"),
        (seen(200, [1], error="replica_lost: in the stream"), "clear"),
        (seen(500, error="Internal Server Error"), "unclear"),
        (seen(200, [1], error=BROKEN_OFF), "unclear"),
    ],
)
def test_an_outcome_beside_a_fault_is_of_one_kind(outcome, kind):
    tally = Tally()
    tally.count(BODY | {"stream": True, "temperature": 0}, seen(200, [1, 2]), outcome)
    different = len(tally.differing)
    amounts = {"right": tally.answered - different, "different": different, "refused": tally.refused}
    amounts |= {"clear": tally.clear.total(), "unclear": tally.unclear.total()}
    assert {name: amount for name, amount in amounts.items() if amount} == {kind: 1}
