"""Files of chats become the JSONL that the training reads; a row that is none is named."""

import json

import pytest

from training.convert import main

ULTRACHAT = {
    "prompt": "Hi",
    "prompt_id": "f0e3",
    "messages": [{"content": "Hi", "role": "user"}, {"content": "Hello.", "role": "assistant"}],
}
SHAREGPT = {
    "id": 7,
    "conversations": [
        {"from": "system", "value": "Be short."},
        {"from": "human", "value": "Hi"},
        {"from": "gpt", "value": "Hello."},
    ],
}
FIRST_ULTRACHAT = {"id": "0", "data": ["Hi", "Hello.", "Bye", "Bye."]}


def messages(*texts, roles=("user", "assistant")):
    return [{"role": roles[number % len(roles)], "content": text} for number, text in enumerate(texts)]


EXPECTED = [
    messages("Hi", "Hello."),
    messages("Be short.", "Hi", "Hello.", roles=("system", "user", "assistant")),
    messages("Hi", "Hello.", "Bye", "Bye."),
]


def written(out):
    return [json.loads(line)["messages"] for line in out.read_text().splitlines()]


def test_each_kind_of_chat_in_a_jsonl(tmp_path, capsys):
    file, out = tmp_path / "chats.jsonl", tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (ULTRACHAT, SHAREGPT, FIRST_ULTRACHAT)))
    assert main([str(file), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"3 chats: {out}\n"
    assert written(out) == EXPECTED
    assert main([str(file), str(file), "--out", str(out), "--limit", "4"]) == 0
    assert written(out) == [*EXPECTED, EXPECTED[0]]


@pytest.mark.parametrize("kind", range(3))
def test_each_kind_of_chat_in_parquet(tmp_path, kind, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    monkeypatch.setattr("training.convert._ROWS_AT_ONCE", 2)
    row = (ULTRACHAT, SHAREGPT, FIRST_ULTRACHAT)[kind]
    file, out = tmp_path / "train_sft-00000.parquet", tmp_path / "data.jsonl"
    parquet.write_table(pyarrow.Table.from_pylist([row] * 5), file)
    assert main([str(file), "--out", str(out)]) == 0
    assert written(out) == [EXPECTED[kind]] * 5


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"txt": "Hi"}, "row 2: a column of messages, conversations, data is expected, the columns are txt"),
        ({"messages": "Hi"}, "row 2: 'messages' is text, a list of messages is expected"),
        ({"data": ["Hi"]}, "row 2: no message has the role 'assistant', so there is nothing to learn"),
        ({"conversations": [{"from": "gpt"}]}, "row 2: message 1: 'content' is not there, text is expected"),
        (["Hi"], "line 2: a JSON object is expected, this is a list"),
    ],
)
def test_a_row_that_is_no_chat_is_named_and_nothing_is_written(tmp_path, capsys, row, reason):
    file, out = tmp_path / "chats.jsonl", tmp_path / "data.jsonl"
    file.write_text(json.dumps(ULTRACHAT) + "\n" + json.dumps(row) + "\n")
    assert main([str(file), "--out", str(out)]) == 1
    assert capsys.readouterr().err == f"convert: {file}, {reason}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]


def test_a_file_that_is_no_parquet_or_is_not_there_is_named(tmp_path, capsys):
    pytest.importorskip("pyarrow")
    file = tmp_path / "chats.parquet"
    file.write_text("{}")
    for path, reason in ((file, "cannot be read as Parquet: "), (tmp_path / "none.jsonl", "cannot be read: ")):
        assert main([str(path), "--out", str(tmp_path / "data.jsonl")]) == 1
        assert capsys.readouterr().err.startswith(f"convert: {path} {reason}")
