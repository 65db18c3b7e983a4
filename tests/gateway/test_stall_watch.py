"""What an ingress logs while its event loop hangs, and what does not make it hang."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator

import pytest
from starlette.types import Receive, Scope, Send

from service.constraints import constraint as constraint_module
from service.constraints.json_schema import SupportedSchema, supported_schema
from service.constraints.room import Room
from service.gateway.request_log import Record, current_record, with_request_log
from service.gateway.stall_watch import StallWatch
from service.replica.replica import Replica
from tests.gateway.apis import APIS, CHAT, COUNT, MESSAGES, RESPONSES, chat, message, response, user
from tests.gateway.doubles import AsgiClient
from tests.gateway.helpers import over

NAME = "service.gateway.stall_watch"
SECRET = "xylophone"


class _Waiting(logging.Handler):
    """Keeps the lines. `seconds` is set with the line that gives the seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[logging.LogRecord] = []
        self.seconds, self.again = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record)
        if "has not answered" in record.msg:
            self.seconds.set()
        if "again" in record.msg:
            self.again.set()


@pytest.fixture
def log() -> Iterator[_Waiting]:
    handler, logger = _Waiting(), logging.getLogger(NAME)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_a_loop_that_hangs_leaves_a_line_of_its_request(log: _Waiting) -> None:
    in_work = set[Record]()
    hangs, waits = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        record = current_record()
        assert record is not None
        record.tenant = "alice"
        if scope["path"] == "/waits":
            hangs.set()
            await waits.wait()
        else:
            assert log.seconds.wait(60)  # the loop hangs until the line is there

    def call(path: str, request_id: bytes) -> asyncio.Task[None]:
        scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"x-request-id", request_id)]}
        client = AsgiClient({"prompt": SECRET})
        return asyncio.ensure_future(
            with_request_log(app, answers_id=True, in_work=in_work)(scope, client.receive, client.send)
        )

    StallWatch(in_work, ask_s=0.01, silent_s=0.05).start()
    waiting = call("/waits", b"other")
    await hangs.wait()
    await call("/hangs", b"culprit")
    assert await asyncio.to_thread(log.again.wait, 60)
    waits.set()
    await waiting
    assert not in_work
    at, silent, *_ = log.lines
    assert (at.msg, at.request_id, at.tenant) == ("the ingress hangs at a request", "culprit", "alice")  # type: ignore[attr-defined]
    assert at.bytes == len(f'{{"prompt": "{SECRET}"}}')  # type: ignore[attr-defined]
    assert (silent.requests, silent.others) == (2, "other")  # type: ignore[attr-defined]
    assert "threading:" in silent.at  # type: ignore[attr-defined]
    assert SECRET not in str([vars(line) for line in log.lines])


SCHEMA = {"type": "object", "propertyNames": {"enum": ["a", "b"]}}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
BODIES = [
    *((api.path, api.body("w5", response_format=FORM)) for api in APIS[:3]),
    (RESPONSES, response(text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}})),
    (MESSAGES, message(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})),
    (MESSAGES, message(tools=[{"name": "f", "input_schema": SCHEMA}])),
    (COUNT, {"model": "golden", "messages": user(), "tools": [{"name": "f", "input_schema": SCHEMA}]}),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}])),
    (CHAT, chat(response_format={"type": "structural_tag", "format": {"type": "json_schema", "json_schema": SCHEMA}})),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_schemas_are_read_beside_the_loop(
    path: str, body: dict[str, object], caller: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, goes = threading.Event(), threading.Event()

    def read_slowly(schema: object, room: Room) -> SupportedSchema:
        reads.set()
        assert goes.wait(60)
        return supported_schema(schema, room)

    monkeypatch.setattr(constraint_module, "supported_schema", read_slowly)
    async with over(caller) as http:
        answer = asyncio.ensure_future(http.post(path, content=json.dumps(body) + " " * 9_000))
        assert await asyncio.to_thread(reads.wait, 60)
        assert (await http.get("/live")).status_code == 200
        assert not answer.done()
        goes.set()
        assert (await answer).status_code == 200
