"""Lines of a batch: both forms, defaults, every wrong kind, and files of any size."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from service.batch.lines import BatchFile, BatchLine, parsed_lines
from service.errors import BodyTooLarge, InvalidRequest, SettingsError


def read(folder: Path, *lines: object, **options: Any) -> list[BatchLine]:
    file = folder / "in.jsonl"
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    batch = BatchFile(file, **options)
    read = list(batch)
    assert len(batch) == len(read)
    return read


def test_a_line_is_a_body_of_generate_or_of_openais_batches(tmp_path: Path) -> None:
    body = {"model": "demo", "messages": []}
    plain, batch = read(
        tmp_path,
        {"custom_id": "a", "prompt": "x", "seed": 3},
        {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": body},
    )
    assert plain == BatchLine(1, "a", "/generate", {"prompt": "x", "seed": 3})
    assert batch == BatchLine(2, "b", "/v1/chat/completions", body)


def test_lines_without_an_id_have_their_number_and_blank_lines_count(tmp_path: Path) -> None:
    lines = read(tmp_path, {"prompt": "x"}, "", "  ", {"prompt": "y"})
    assert [(line.number, line.custom_id) for line in lines] == [(1, "line-1"), (4, "line-4")]


def test_defaults_fill_the_fields_that_a_body_lacks(tmp_path: Path) -> None:
    lines = read(
        tmp_path, {"prompt": "x"}, {"url": "/v1/completions", "body": {"seed": 2}}, defaults={"seed": 1, "top_k": 5}
    )
    assert [line.body for line in lines] == [{"seed": 1, "top_k": 5, "prompt": "x"}, {"seed": 2, "top_k": 5}]
    [line] = read(tmp_path, {"prompt": "x", "max_tokens": 8}, defaults={"max_new_tokens": 64, "seed": 1})
    assert line.body == {"prompt": "x", "max_tokens": 8, "seed": 1}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{oops", "the line is not JSON"),
        ("[1, 2]", "the line is no JSON object"),
        ({"custom_id": 7, "prompt": "x"}, "custom_id is '7', a text of 1 to 512 characters is expected"),
        ({"custom_id": "line-8", "prompt": "x"}, "the id of another line"),
        ({"url": "/v1/chat/completions"}, "body is missing"),
        ({"url": "/v1/embeddings", "body": {}}, "url is '/v1/embeddings', allowed are /generate, /v1/chat/completions"),
        ({"url": "/generate", "method": "GET", "body": {}}, "method is 'GET', allowed is 'POST'"),
        ({"url": "/generate", "body": {}, "costum_id": "x"}, "did you mean 'custom_id'"),
    ],
)
def test_a_line_that_is_no_request_has_an_error_and_the_next_line_is_read(
    tmp_path: Path, line: object, reason: str
) -> None:
    wrong, right = read(tmp_path, line, {"prompt": "x"})
    assert isinstance(wrong.error, InvalidRequest)
    assert reason in wrong.error.message
    assert (wrong.number, wrong.custom_id) == (1, "line-1")
    assert right.error is None


def test_the_second_line_with_an_id_is_an_error_under_its_number(tmp_path: Path) -> None:
    first, second, third = read(tmp_path, *[{"custom_id": "a", "prompt": "x"}] * 2, {"custom_id": "c", "prompt": "x"})
    assert (first.error, third.error) == (None, None)
    assert second.custom_id == "line-2"
    assert "an earlier line has" in second.error.message


def test_a_line_over_the_limit_is_an_error_and_is_never_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    with file.open("w") as out:
        out.write('{"prompt": "x"}\n{"prompt": "')
        for _ in range(64):
            out.write("x" * 2**20)
        out.write('"}\n{"prompt": "y"}')
    tracemalloc.start()
    first, huge, last = BatchFile(file, max_line_bytes=1000)
    assert tracemalloc.get_traced_memory()[1] < 2**21
    tracemalloc.stop()
    assert isinstance(huge.error, BodyTooLarge)
    assert (first.body, last.body, last.number) == ({"prompt": "x"}, {"prompt": "y"}, 3)


def test_the_longest_line_is_read_and_a_byte_order_mark_is_no_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    text = b'{"prompt": "xxxx"}'
    for content in (text + b"\n", text, b"\xef\xbb\xbf" + text):
        file.write_bytes(content)
        assert [line.error for line in BatchFile(file, max_line_bytes=len(text) + (content[0] == 0xEF) * 3)] == [None]
        assert [type(line.error) for line in BatchFile(file, max_line_bytes=len(text) - 1)] == [BodyTooLarge]


def test_rows_of_parquet_are_lines(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="an extra: pip install '.[batch]'")
    from pyarrow import parquet

    file = tmp_path / "in.parquet"
    rows = [
        {"custom_id": None, "prompt": "x", "messages": None, "seed": 1, "answer": "7"},
        {"custom_id": "b", "prompt": None, "messages": [{"role": "user", "content": "y"}], "seed": None, "answer": "8"},
    ] * 300
    parquet.write_table(arrow.Table.from_pylist(rows), file, row_group_size=100)
    batch = BatchFile(file, {"top_k": 2})
    lines = list(batch)
    assert len(batch) == len(lines) == 600
    assert batch.unused_columns() == ["answer"]
    assert lines[0] == BatchLine(1, "line-1", "/generate", {"top_k": 2, "prompt": "x", "seed": 1})
    assert lines[1].body == {"top_k": 2, "messages": [{"role": "user", "content": "y"}]}
    assert lines[598].custom_id == "line-599"


@pytest.mark.parametrize("name", ["absent.jsonl", "absent.parquet", "broken.parquet", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="an extra: pip install '.[batch]'")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(SettingsError, match=r"in is .*, which cannot be read"):
        list(BatchFile(tmp_path / name))


def test_lines_in_memory_are_read_like_a_file() -> None:
    first, second = parsed_lines([{"custom_id": "a", "prompt": "x"}, {"custom_id": "a", "prompt": "y"}], {"seed": 1})
    assert first == BatchLine(1, "a", "/generate", {"seed": 1, "prompt": "x"})
    assert second.error is not None
