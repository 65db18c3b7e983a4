"""Full queues, missing replicas, time limits and bugs: the status, Retry-After and the message."""

import pytest

from service.errors import NotReady
from tests.gateway.doubles import Scripted
from tests.gateway.engines import an_hour_passes, failing
from tests.gateway.generate.helpers import CASES, GENERATE, PROMPT, ask, body, problem, streamed, words
from tests.gateway.helpers import idle, over

#: what an error says that nobody foresaw; it may quote a prompt
MARK = "xylophone"


class TestLoad:
    @pytest.mark.parametrize("method_path", [("POST", GENERATE), ("GET", "/v1/models"), ("GET", "/health")])
    async def test_no_replica_is_503_with_the_time_to_retry(self, method_path):
        async with over(Scripted(down=NotReady("no replica is there yet: loading", retry_after=4.2))) as http:
            response = await http.request(*method_path, json=body())
            detail = problem(response, 503)
            assert (detail["code"], detail["message"]) == ("not_ready", "no replica is there yet: loading")
            assert response.headers["retry-after"] == "5"

    async def test_a_failed_engine_tells_the_line_and_no_message(self, make_generator, caplog):
        async with over(make_generator("r7", deps=failing(after=0, message=MARK)), max_failovers=0) as http:
            assert (await http.get("/health")).json() == {"status": "ok", "replicas_ready": 1}
            detail = problem(await http.post(GENERATE, json=body()), 500)
            line = detail["message"].removeprefix("the engine stopped: ")
            assert line.startswith("ZeroDivisionError in tests.gateway.engines, line ")
            for response in (await http.get("/health"), await http.post(GENERATE, json=body())):
                detail = problem(response, 503)
                assert detail["message"] == f"no replica can generate: r7: {line}"
                assert response.headers["retry-after"] == "5"
            assert MARK not in (await http.get("/metrics")).text
        assert "the engine stopped" in caplog.text
        assert MARK not in caplog.text


class TestTimeOuts:
    async def test_a_time_out_before_the_first_token_is_504(self, make_generator):
        generator = make_generator(deps=an_hour_passes(after=1))
        async with over(generator) as http:
            detail = problem(await http.post(GENERATE, json=body(timeout_s=2.5, mode="direct")), 504)
            assert detail["code"] == "deadline_exceeded"
            assert detail["message"] == "timeout_s is 2.5, nothing was decoded by then"
        assert idle(generator)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_time_out_with_some_blocks_is_a_part(self, make_generator, stream):
        async with over(make_generator(deps=an_hour_passes(after=8))) as http:  # a block
            answer = await (streamed if stream else ask)(http, body(max_new_tokens=500, ignore_eos=True))
        assert answer["finish_reason"] == "timeout"
        assert answer["token_ids"] == CASES[0]["token_ids"][:8]
        assert answer["text"] == words(CASES[0]["token_ids"][:8])
        assert answer["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": 8, "total_tokens": 16}
