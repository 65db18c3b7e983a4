"""One API key learns nothing about the prompts of another one, by cached tokens or otherwise."""

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.admission.keys import ApiKey
from service.gateway.backend import Backend
from service.messages.wire import ReplicaRequest
from service.replica.replica import Replica
from service.routing.keys import prefix_keys
from tests.gateway.conftest import MakeGenerator
from tests.gateway.doubles import LosesFirst
from tests.gateway.generate.helpers import GENERATE, PROMPT, body, read_frames
from tests.gateway.helpers import over
from tests.gateway.local import LocalBackend

KEYS = ("alice-secret", "bob-secret")
#: what the cache can have of the prompt: its whole blocks
CACHED = len(PROMPT)


def service(backend: Backend | Replica, **settings: Any) -> httpx.AsyncClient:
    return over(backend, api_keys=KEYS, **settings)


async def stats(http: httpx.AsyncClient, key: str, **fields: Any) -> dict[str, Any]:
    response = await http.post(GENERATE, json=body(**fields), headers={"x-api-key": key})
    assert response.status_code == 200, response.text
    return dict(response.json()["stats"])


async def cached(http: httpx.AsyncClient, key: str, **fields: Any) -> int:
    return int((await stats(http, key, **fields))["cached_tokens"])


ALICE, BOB = KEYS


class TestPrefixCache:
    async def test_a_key_gets_no_cached_tokens_of_another(self, make_generator):
        async with service(make_generator()) as http:
            assert [await cached(http, key) for key in (ALICE, ALICE, BOB, BOB)] == [0, CACHED, 0, CACHED]

    async def test_a_prompt_of_another_key_takes_its_full_prefill(self, make_generator):
        """So the time to the first block tells nothing either."""
        async with service(make_generator()) as http:
            new = await stats(http, BOB, prompt_token_ids=[1, 2, 3, 4, 5, 6, 7, 8])
            await stats(http, ALICE)
            repeated = await stats(http, BOB)
        assert repeated["forwards"] == new["forwards"]
        assert repeated["forwards"]["prefill"] == 1

    async def test_salts_part_further_and_no_salt_meets_another_key(self, make_generator):
        """Keys of the setting are named key-1 and key-2."""
        async with service(make_generator()) as http:
            assert [await cached(http, ALICE, cache_salt=salt) for salt in ("s", "t", "s")] == [0, 0, CACHED]
            for salt in ("s", "key-1s", "key-1\x00s", "key-1:s", "5:key-1s", "key-1", '["key-1", "s"]'):
                assert await cached(http, BOB, cache_salt=salt) == 0

    async def test_openais_routes_part_keys(self, make_generator):
        async with service(make_generator(), served_model_name="golden") as http:
            request = {"model": "golden", "prompt": PROMPT, "max_tokens": 4, "mode": "static"}
            counts = []
            for key in (ALICE, ALICE, BOB):
                response = await http.post("/v1/completions", json=request, headers={"x-api-key": key})
                counts.append(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert counts == [0, CACHED, 0]

    async def test_the_setting_shares_the_cache(self, make_generator):
        async with service(make_generator(), share_prefixes_between_keys=True) as http:
            assert [await cached(http, key) for key in (ALICE, BOB)] == [0, CACHED]
            assert [await cached(http, key, cache_salt="s") for key in (ALICE, BOB)] == [0, CACHED]

    async def test_without_keys_all_clients_share(self, make_generator):
        async with over(make_generator()) as http:
            assert [await cached(http, key) for key in (ALICE, BOB)] == [0, CACHED]

    async def test_a_continued_answer_is_cached_for_its_key(self, make_generator, caplog):
        """The replica that goes on caches for the same key, and for no other. The log has the key's name."""
        first, second = make_generator("r0"), make_generator("r1")
        async with service(LosesFirst(first, second, after=1)) as http:
            response = await http.post(GENERATE, json=body(stream=True), headers={"x-api-key": ALICE})
            assert read_frames(response.content)[-1][0] == "done"
            assert [await cached(http, key) for key in (BOB, ALICE)] == [0, CACHED]
        [line] = [line for line in caplog.records if line.msg == "a request has lost its replica"]
        assert (line.tenant, line.route, line.error) == ("key-1", GENERATE, "replica_lost")


class TestRouting:
    async def requests(self, make_generator: MakeGenerator, **settings: Any) -> list[ReplicaRequest]:
        """A request of each key, the same otherwise."""
        backend = LocalBackend(make_generator())
        async with service(backend, **settings) as http:
            for key in KEYS:
                await stats(http, key, cache_salt="s", prompt_cache_key="k", prompt_token_ids=[*range(1, 200)])
        return backend.requests

    async def test_prefix_keys_differ_by_api_key(self, make_generator):
        alices, bobs = map(prefix_keys, await self.requests(make_generator))
        assert len(alices.keys) == len(bobs.keys) > 5
        assert not set(alices.keys) & set(bobs.keys)
        assert alices.session != bobs.session

    async def test_shared_prefixes_have_the_same_keys(self, make_generator):
        alices, bobs = map(prefix_keys, await self.requests(make_generator, share_prefixes_between_keys=True))
        assert alices.keys == bobs.keys
        assert alices.session != bobs.session

    async def test_every_ingress_makes_the_same_keys(self, make_generator):
        first, second = [await self.requests(make_generator) for _ in range(2)]
        assert list(map(prefix_keys, first)) == list(map(prefix_keys, second))


names = st.text(min_size=1, max_size=6)
salts = st.text(max_size=6)


@given(st.tuples(names, salts), st.tuples(names, salts))
def test_no_key_and_salt_are_those_of_another(first, second):
    """Whatever characters they hold."""
    mixed = [ApiKey(name, b"digest").salted(salt) for name, salt in (first, second)]
    assert (mixed[0] == mixed[1]) == (first == second)


@given(st.lists(st.sampled_from("ab1:"), max_size=3), st.lists(st.sampled_from("ab1:"), max_size=3))
def test_no_key_and_salt_are_those_of_another_that_looks_alike(name, salt):
    """All ways to part one text into a name and a salt."""
    text = "".join([*name, *salt])
    mixed = [ApiKey(text[:cut], b"digest").salted(text[cut:]) for cut in range(len(text) + 1)]
    assert len(set(mixed)) == len(mixed)


def test_without_a_key_a_salt_is_as_it_is():
    assert ApiKey("").salted("s") == "s"


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models"])
async def test_public_pages_name_no_key_and_no_prompt(make_generator, path):
    async with service(make_generator()) as http:
        for key in KEYS:
            await stats(http, key, prompt_token_ids=None, prompt="w17 xylophone", cache_salt="tambourine")
        text = (await http.get(path, headers={"x-api-key": BOB})).text
    assert not [secret for secret in ("xylophone", "w17", "tambourine", "key-1", "key-2", *KEYS) if secret in text]


async def test_a_request_id_of_another_key_may_be_used_and_tells_nothing(make_generator):
    backend = LocalBackend(make_generator())
    async with service(backend) as http:
        for key in KEYS:
            headers = {"x-api-key": key, "x-request-id": "mine"}
            assert (await http.post(GENERATE, json=body(), headers=headers)).status_code == 200
    assert len({request.request_id for request in backend.requests}) == 2
