"""What clients and operators see of the prefix cache: counts, metrics, salts, the switch."""

import httpx

from tests.gateway.generate.helpers import PROMPT, ask, body, frames
from tests.gateway.helpers import over, page

COMPLETIONS = "/v1/completions"
CACHED = len(PROMPT)  # one block


async def cached(http: httpx.AsyncClient, **fields: object) -> int:
    return int((await ask(http, body(**fields)))["stats"]["cached_tokens"])


async def test_a_repeated_prompt_is_counted_and_not_prefilled(make_generator):
    async with over(make_generator()) as http:
        first = (await ask(http, body()))["stats"]
        *blocks, (_, done) = await frames(http, body())
        second, metrics = done["stats"], await page(http)
    assert (first["cached_tokens"], first["forwards"]["prefill"]) == (0, 1)
    assert (second["cached_tokens"], second["forwards"]["prefill"]) == (CACHED, 0)
    assert all(block["stats"]["cached_tokens"] == CACHED for _, block in blocks)
    assert metrics("mrp_prefix_cache_queries_total") == metrics("mrp_prompt_tokens_total") == 2 * len(PROMPT)
    assert metrics("mrp_prefix_cache_hits_total") == CACHED
    assert metrics("mrp_kv_cache_usage_perc") == 0


async def test_the_cache_can_be_switched_off(make_generator):
    async with over(make_generator(enable_prefix_caching=False)) as http:
        assert [await cached(http), await cached(http)] == [0, 0]
        assert (await page(http))("mrp_prefix_cache_queries_total") == 0
