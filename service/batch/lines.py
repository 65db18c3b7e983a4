"""The lines of a batch: JSON lines or rows of a Parquet file, each with one request.

A line is a body of POST /generate, or a line of OpenAI's batches (`custom_id`, `method`, `url`, `body`). A line that is
no request has an error. Files are read line by line, so their size does not matter.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

from service.api.anthropic.routes import parse_messages
from service.api.driver import Parse
from service.api.generate import parse_generate_request
from service.api.openai.parse import parse_chat, parse_completion
from service.api.openai.responses.parse import parse_responses
from service.api.protocol import GenerateBody, Json
from service.api.score.routes import parse_score
from service.constraints.json_text import read_json
from service.errors import BodyTooLarge, InvalidRequest, MrpServeError, SettingsError, nearest

#: the path of the requests that lines without `url` have
GENERATE: Final = "/generate"
#: path -> the parser of its requests
APIS: Final[Mapping[str, Parse]] = {
    GENERATE: parse_generate_request,
    "/v1/chat/completions": parse_chat,
    "/v1/completions": parse_completion,
    "/v1/messages": parse_messages,
    "/v1/responses": parse_responses,
    "/v1/score": parse_score,
}

_ENVELOPE = ("custom_id", "method", "url", "body")
_MAX_ID = 512
#: the names of one field, of which a body has one
_LIMITS = ("max_new_tokens", "max_tokens")
#: the ids of lines without `custom_id`
_DEFAULT_ID = re.compile(r"line-\d+")
_PARQUET = ".parquet"
#: rows of a Parquet file that are in memory at once
_ROWS = 256
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One line and its number, from 1. `url`, `body`: those of its request. `error`: why the line is no request."""

    number: int
    custom_id: str
    url: str = GENERATE
    body: Json = field(default_factory=dict, repr=False)
    error: MrpServeError | None = None


@dataclass(frozen=True, slots=True)
class BatchFile:
    """An input file. `defaults`: fields for the bodies that lack them. SettingsError if it cannot be read."""

    path: Path
    defaults: Json = field(default_factory=dict)
    max_line_bytes: int = 2**20

    def __len__(self) -> int:
        """The number of lines. Reads a JSONL file to its end."""
        return int(_parquet(self.path).metadata.num_rows) if self.is_parquet else sum(1 for _ in self._texts())

    def __iter__(self) -> Iterator[BatchLine]:
        """The lines in order. Blank lines are skipped."""
        contents = self._rows() if self.is_parquet else self._texts()
        ids = set[int]()
        for number, content in contents:
            yield _without_duplicate(read_line(number, content, self.defaults), ids)

    @property
    def is_parquet(self) -> bool:
        return self.path.suffix == _PARQUET

    def unused_columns(self) -> list[str]:
        """The columns of a Parquet file that are no fields of requests."""
        return [name for name in _parquet(self.path).schema_arrow.names if name not in _COLUMNS]

    def _texts(self) -> Iterator[tuple[int, bytes | BodyTooLarge]]:
        limit = self.max_line_bytes
        try:
            with self.path.open("rb") as file:
                for number, text in enumerate(iter(lambda: file.readline(limit + 1), b""), 1):
                    if len(text) > limit and not text.endswith(b"\n"):
                        while (rest := file.readline(limit)) and not rest.endswith(b"\n"):
                            pass
                        yield number, BodyTooLarge(f"the line is longer than max_body_bytes ({limit})")
                    elif text.strip():
                        yield number, text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text
        except OSError as error:
            raise _unreadable(self.path, error) from None

    def _rows(self) -> Iterator[tuple[int, Json]]:
        file = _parquet(self.path)
        columns = [name for name in file.schema_arrow.names if name in _COLUMNS]
        batches = file.iter_batches(_ROWS, columns=columns)
        rows = chain.from_iterable(batch.to_pylist() for batch in batches)
        yield from ((number, _without_nulls(row)) for number, row in enumerate(rows, 1))


#: columns of a Parquet file that are read
_COLUMNS: Final = frozenset({*GenerateBody.model_fields, *_ENVELOPE})


def read_line(number: int, content: bytes | Mapping[str, Any] | BodyTooLarge, defaults: Json) -> BatchLine:
    """The line with this number: JSON text, a parsed line, or the error of a line that was not read."""
    custom_id = f"line-{number}"
    if isinstance(content, MrpServeError):
        return BatchLine(number, custom_id, error=content)
    try:
        fields = read_json(content) if isinstance(content, bytes) else content
        if not isinstance(fields, Mapping):
            raise InvalidRequest("the line is no JSON object")
        custom_id = _custom_id(fields.get("custom_id"), custom_id)
        url, body = _request(fields)
    except MrpServeError as error:
        return BatchLine(number, custom_id, error=error)
    except ValueError as error:
        return BatchLine(number, custom_id, error=InvalidRequest(f"the line is not JSON: {error}"))
    limited = any(body.get(name) is not None for name in _LIMITS)
    lacking = {name: value for name, value in defaults.items() if not (limited and name in _LIMITS)}
    return BatchLine(number, custom_id, url, {**lacking, **body})


def _custom_id(value: object, default: str) -> str:
    if value is None or value == default:
        return default
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_ID:
        raise InvalidRequest(
            f"custom_id is {str(value)[:80]!r}, a text of 1 to {_MAX_ID} characters is expected", param="custom_id"
        )
    if _DEFAULT_ID.fullmatch(value):
        raise InvalidRequest(f"custom_id is {value!r}, the id of another line without custom_id", param="custom_id")
    return value


def _request(fields: Mapping[str, Any]) -> tuple[str, Json]:
    if "body" not in fields and "url" not in fields:
        return GENERATE, {name: value for name, value in fields.items() if name != "custom_id"}
    if unknown := [name for name in fields if name not in _ENVELOPE]:
        raise InvalidRequest(
            f"{unknown[0][:80]!r} is not a field of a line with a body; {nearest(unknown[0], _ENVELOPE)}"
        )
    if (method := fields.get("method", "POST")) != "POST":
        raise InvalidRequest(f"method is {str(method)[:80]!r}, allowed is 'POST'", param="method")
    if (url := fields.get("url")) not in APIS:
        raise InvalidRequest(f"url is {str(url)[:80]!r}, allowed are {', '.join(APIS)}", param="url")
    if not isinstance(body := fields.get("body"), dict):
        raise InvalidRequest("body is missing or no JSON object", param="body")
    return str(url), body


def _without_duplicate(line: BatchLine, ids: set[int]) -> BatchLine:
    """The line, or an error if an earlier line has its id. `ids`: hashes, since millions of texts need much memory."""
    if _DEFAULT_ID.fullmatch(line.custom_id):
        return line
    key = hash(line.custom_id)
    if key in ids:
        error = InvalidRequest(f"custom_id is {line.custom_id!r}, which an earlier line has", param="custom_id")
        return BatchLine(line.number, f"line-{line.number}", error=error)
    ids.add(key)
    return line


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise SettingsError("Parquet files need pyarrow: pip install '.[batch]'", param="in") from error
    try:
        return ParquetFile(path)
    except (OSError, ArrowException) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> SettingsError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return SettingsError(f"in is {path}, which cannot be read: {reason}", param="in")


def _without_nulls(value: Any) -> Any:
    """A row without its null fields. In a Parquet file every row has every field."""
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def parsed_lines(lines: Iterable[Mapping[str, Any]], defaults: Json) -> list[BatchLine]:
    """Lines that are already parsed, as `BatchFile` reads them."""
    ids = set[int]()
    return [_without_duplicate(read_line(number, line, defaults), ids) for number, line in enumerate(lines, 1)]
