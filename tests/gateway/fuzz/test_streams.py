"""Server-sent events parsed by the grammar of the standard: the pieces make the answer, whatever the text holds."""

import json
import re
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from service.api.streams import frame
from service.decode.modes import MODES
from tests.gateway.apis import CHAT, COMPLETIONS, GENERATE, MESSAGES, each_api
from tests.gateway.fuzz.test_bodies import FEW, any_json, whole

_LINE_END = re.compile("\r\n|\n|\r")


def events(content: bytes) -> Iterator[tuple[str, str]]:
    """(event, data) of a stream as the HTML standard reads it: any line end, comments, one leading space."""
    text = content.decode("utf-8", "strict").removeprefix("\ufeff")
    name, data = "", []
    *lines, rest = _LINE_END.split(text)
    assert rest == "", "the stream ends within a line"
    for line in lines:
        field, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            if data:
                yield name or "message", "\n".join(data)
            name, data = "", []
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
        else:
            assert line.startswith(":"), f"a line that is neither field nor comment: {line!r}{colon}"
    assert not data, "the stream ends within an event"


@given(value=any_json | st.text(alphabet="\r\n:\u2028\u2029\x85\0 e", max_size=20))
def test_a_frame_is_one_event_whatever_it_holds(value):
    [(name, data)] = events(frame("block", {"text": value}))
    assert name == "block"
    assert json.loads(data) == {"text": value}


@each_api
@FEW
@given(
    mode=st.sampled_from(list(MODES)),
    temperature=st.sampled_from([0, 0.7, 0.9]),
    seed=st.integers(0, 2**63 - 1),
    length=st.integers(1, 40),
    stop=st.lists(st.sampled_from(["w1", " ", "w4", "w50", "\n", "9"]), max_size=2),
)
def test_a_stream_is_the_whole_answer(http, api, mode, temperature, seed, length, stop):
    body = {**whole(api.path, "w5 w6 w7"), "mode": mode, "seed": seed, "temperature": temperature, api.limit: length}
    body |= {"stop_sequences" if api.path == MESSAGES else "stop": stop}
    answer = http.post(api.path, json=body).json()
    usage_of_streams = {"stream_options": {"include_usage": True}} if api.path in {COMPLETIONS, CHAT} else {}
    response = http.post(api.path, json={**body, "stream": True, **usage_of_streams})
    stream = [json.loads(data) for _, data in events(response.content) if data != "[DONE]"]
    assert "".join(map(api.delta, stream)) == api.text(answer)
    last = next(event for event in reversed(stream) if "usage" in event or "response" in event)
    usage = last["usage"] if "usage" in last else last["response"]["usage"]
    output = "completion_tokens" if "completion_tokens" in usage else "output_tokens"
    assert usage[output] == answer["usage"][output]
    assert api.path != GENERATE or [last[name] for name in ("finish_reason", "seed")] == [
        answer[name] for name in ("finish_reason", "seed")
    ]
