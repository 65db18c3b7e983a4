"""What a replica keeps for MRP's trainer: the requests that ended by themselves, within a number of tokens."""

from pathlib import Path

import pytest

from service.engine.request import Stats
from service.messages.finished import FinishedRequest
from service.replica.recent import RecentRequests
from tests.gateway.generate.helpers import GENERATE, PROMPT, ask, body
from tests.gateway.helpers import over


async def test_a_finished_request_is_kept_until_it_is_taken(make_generator):
    replica = make_generator(online_mrp_dir=Path("versions"))
    async with over(replica) as http:
        answer = await ask(http, body(mode="speculative", mrp_steps=2))
        part = replica.take_finished()
        [request] = part.requests
        assert request.token_ids[: request.prompt_tokens] == tuple(PROMPT)
        assert request.token_ids[request.prompt_tokens :] == tuple(answer["token_ids"])
        assert request.stats.drafts_accepted == answer["stats"]["drafts_accepted"]
        assert (part.weights, part.num_waiting) == (replica.status().card.weights, 0)
        assert "token_ids" not in repr(part)
        assert replica.take_finished().requests == ()


async def test_scores_and_errors_are_not_kept(make_generator):
    replica = make_generator(online_mrp_dir=Path("versions"))
    async with over(replica) as http:
        score = {"prompt_token_ids": [*PROMPT, -1], "label_token_ids": [1, 2]}
        assert (await http.post("/v1/score", json=score)).status_code < 500
        assert (await http.post(GENERATE, json=body(prompt_token_ids=[10**9]))).status_code == 422
        assert replica.take_finished().requests == ()


async def test_nothing_is_kept_unless_mrp_learns(make_generator):
    replica = make_generator()
    async with over(replica) as http:
        await ask(http, body())
        assert replica.take_finished().requests == ()


@pytest.mark.parametrize(("most", "firsts"), [(9, [2, 3, 4]), (8, [3, 4]), (2, [])])
def test_the_oldest_go_first(most, firsts):
    recent = RecentRequests(most)
    for number in range(5):
        recent.add(FinishedRequest((number,) * 3, 1, "", Stats()))
    assert [request.token_ids[0] for request in recent.take()] == firsts
    assert recent.take() == ()
    recent.add(FinishedRequest((7, 7), 1, "", Stats()))
    assert len(recent.take()) == 1
