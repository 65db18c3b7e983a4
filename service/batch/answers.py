"""Answers lines: parses each as its route does, keeps the engines full, and passes outputs on as they finish."""

import asyncio
import json
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace

from service.api.driver import ResponseBuilder
from service.api.errors import error_response
from service.api.fields import IgnoredFields
from service.api.parse import RequestContext
from service.api.protocol import Json
from service.api.streams import all_of
from service.batch.lines import APIS, BatchLine
from service.batch.replicas import BatchReplicas
from service.errors import InvalidRequest, MrpServeError
from service.messages.wire import Answer, Origin, ReplicaRequest
from service.settings.settings import Settings
from service.tracebacks import error_for_client

#: gets the output of a line
WriteOutput = Callable[[Json], None]
#: lines without a request after which other tasks run
_BREATH = 64


class LineAnswers:
    """Answers lines by running replicas. `tokens`: the number of tokens of all answers."""

    def __init__(self, replicas: BatchReplicas, settings: Settings) -> None:
        self._replicas = replicas
        self._free, self._freed = replicas.slots, asyncio.Event()
        card = replicas.card
        self._context = RequestContext(
            card,
            settings.request_timeout_s,
            default_max_tokens=settings.default_max_tokens,
        )
        self._ignored_fields: set[str] = set()  # names in the log
        self.tokens = 0

    async def run(self, lines: Iterable[BatchLine], write: WriteOutput) -> None:
        """Answers all lines, read as engines have room; `write` gets outputs as they finish. Raises their errors."""
        try:
            async with asyncio.TaskGroup() as group:
                for index, line in enumerate(lines):
                    request_id = secrets.token_hex(12)
                    try:
                        builder = self._parse(line, request_id)
                    except MrpServeError as error:
                        write(_failed(line, request_id, error))
                        if index % _BREATH == 0:
                            await asyncio.sleep(0)
                        continue
                    count = await self._take(len(builder.requests))
                    group.create_task(self._answer(line, request_id, builder, count, write))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _parse(self, line: BatchLine, request_id: str) -> ResponseBuilder:
        if line.error is not None:
            raise line.error
        try:
            ignored = IgnoredFields(logged=self._ignored_fields)
            context = replace(self._context, origin=Origin(request_id), ignored=ignored)
            builder = APIS[line.url](line.body, context)
        except Exception as error:  # noqa: BLE001 - a line must not end the others
            raise error_for_client(error, request_id) from None
        if builder.stream:
            raise InvalidRequest("stream is true; a batch has whole answers only", param="stream")
        return builder

    async def _answer(
        self, line: BatchLine, request_id: str, builder: ResponseBuilder, count: int, write: WriteOutput
    ) -> None:
        async def answered(index: int, request: ReplicaRequest) -> Answer:
            with builder.client_errors(index):
                return await self._replicas.answer(request)

        try:
            answers = await all_of([answered(index, request) for index, request in enumerate(builder.requests)])
            IgnoredFields(logged=self._ignored_fields).add_all(answers)
            output = _output(line, request_id, 200, await builder.full_response(answers), None)
            self.tokens += sum(answer.ending.completion_tokens for answer in answers)
        except Exception as error:  # noqa: BLE001 - as in `_parse`
            if isinstance(error, MrpServeError) and self._replicas.failure is not None:
                raise self._replicas.failure from None
            output = _failed(line, request_id, error_for_client(error, request_id))
        finally:
            self._free += count
            self._freed.set()
        write(output)

    async def _take(self, count: int) -> int:
        """Waits for room for `count` requests. Returns the number of slots to give back."""
        count = min(count, self._replicas.slots)
        while self._free < count:
            self._freed.clear()
            await self._freed.wait()
        self._free -= count
        return count


def _output(line: BatchLine, request_id: str, status: int, body: object, error: object) -> Json:
    response = {"status_code": status, "request_id": request_id, "body": body}
    about = {"id": f"batch_req_{request_id}", "custom_id": line.custom_id, "line": line.number}
    return {**about, "response": response, "error": error}


def _failed(line: BatchLine, request_id: str, error: MrpServeError) -> Json:
    response = error_response(error, request_id, line.url, {})
    body = json.loads(bytes(response.body))
    return _output(line, request_id, response.status_code, body, {"code": error.code, "message": error.message})
