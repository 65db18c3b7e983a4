"""What clients and operators see of preemptions: streams that pause, statistics, metrics."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from service.engine.page_forecast import PageForecast
from service.engine.prefix_cache import Lease
from tests.gateway.conftest import UNMEASURED
from tests.gateway.generate.helpers import EOS, ask, body, frames
from tests.gateway.helpers import over, page


class Hopeful(PageForecast):
    """No answer is expected to grow."""

    def peak(self, leases: Sequence[Lease], num_used: int, num_new: int) -> int:
        return 0


async def test_answers_that_lose_their_pages_are_whole_and_counted(make_generator):
    """Each would fill the cache, which starts many."""
    bodies = [
        body(
            prompt_token_ids=[number, 2, 3],
            max_new_tokens=80,
            tokens_per_step=2,
            logit_bias={str(EOS): -100},
            temperature=0.8,
            seed=7,
        )
        for number in range(3, 8)
    ]
    async with over(make_generator(kv_cache_tokens=8192)) as http:
        alone = [await ask(http, sent) for sent in bodies]
    tight = make_generator(kv_cache_tokens=96, max_num_seqs=8, deps=replace(UNMEASURED, forecast=Hopeful))
    async with over(tight) as http:
        streams = await asyncio.gather(*(frames(http, sent) for sent in bodies))
        metrics = await page(http)
    counts = []
    for expected, stream in zip(alone, streams, strict=True):
        *blocks, (name, done) = stream
        assert name == "done"
        assert [block["index"] for _, block in blocks] == list(range(len(blocks)))
        assert [token for _, block in blocks for token in block["token_ids"]] == expected["token_ids"]
        assert expected["stats"]["num_preemptions"] == 0
        counts.append(done["stats"]["num_preemptions"])
    assert metrics("mrp_num_preemptions_total") == sum(counts) > 0
    assert metrics("mrp_preempted_tokens_recomputed_total") > 0
    assert metrics("mrp_kv_cache_usage_perc") == 0
