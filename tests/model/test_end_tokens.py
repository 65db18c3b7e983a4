"""The tokens that end an answer, from every file of a checkpoint that names one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from service.engine import EngineConfig
from service.errors import CheckpointError
from service.library import TextModel
from service.model import parse_config, read_config
from service.model.end_tokens import end_tokens
from service.text import TextCodec
from tests.tiny import GOLDEN, GOLDEN_NAMES, LLADA2_NAME

DEMO = Path(__file__).resolve().parents[2] / "service" / "demo"
STORY = [{"role": "user", "content": "Tom has 5 apples, gets 3, loses 2."}]
END, PAD = 3, 0
CONFIG, GENERATION, TOKENIZER, MAP = (
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"
)  # fmt: skip
TEXT = "<|end|>"
ADDED = {"content": TEXT, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
Files = dict[str, dict[str, Any]]


def written(folder: Path, files: Files, source: Path = DEMO) -> Path:
    """A copy of a checkpoint whose end tokens stand in these files only; a value of None takes a key out."""
    folder.mkdir()
    for name in (CONFIG, TOKENIZER, "tokenizer.json", "model.safetensors"):
        shutil.copy(source / name, folder)
    left_out: Files = {CONFIG: {"eos_token_id": None}, TOKENIZER: {"eos_token": None}}
    for name, changes in (*left_out.items(), *files.items()):
        file = folder / name
        content = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({key: value for key, value in (content | changes).items() if value is not None}))
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({CONFIG: {"eos_token_id": END}}, {END: [CONFIG]}),
        ({CONFIG: {"text_config": {"eos_token_id": [END]}}}, {END: [CONFIG]}),
        ({GENERATION: {"eos_token_id": [7, END]}}, {7: [GENERATION], END: [GENERATION]}),
        ({CONFIG: {"eos_token_id": PAD}, TOKENIZER: {"eos_token": TEXT}}, {PAD: [CONFIG], END: [TOKENIZER]}),
        ({TOKENIZER: {"eos_token": {"__type": "AddedToken", **ADDED}}}, {END: [TOKENIZER]}),
        ({TOKENIZER: {"eos_token": "<|pad|>"}, MAP: {"eos_token": ADDED}}, {PAD: [TOKENIZER], END: [MAP]}),
        ({MAP: {"eos_token": TEXT}}, {END: [MAP]}),
        (
            {CONFIG: {"eos_token_id": END}, GENERATION: {"eos_token_id": END}, TOKENIZER: {"eos_token": TEXT}},
            {END: [CONFIG, GENERATION, TOKENIZER]},
        ),
        ({TOKENIZER: {"eos_token": "<|no such token|>"}}, {}),
        ({TOKENIZER: {"eos_token": "idget"}, CONFIG: {"vocab_size": 1023}}, {}),  # the model never writes it
        ({TOKENIZER: {"eos_token": "default"}}, {995: [TOKENIZER]}),  # a word of the model's vocabulary
        ({}, {}),
    ],
)
def test_end_tokens_come_from_all_files(tmp_path: Path, files: Files, expected: dict[int, list[str]]) -> None:
    folder = written(tmp_path / "a", files)
    raw = json.loads((folder / CONFIG).read_text())
    assert end_tokens(folder, raw) == expected
    assert parse_config(read_config(folder)).eos_token_ids == tuple(expected)


@pytest.mark.parametrize("files", [{CONFIG: {"eos_token_id": PAD}, MAP: {"eos_token": TEXT}}, {}], ids=["map", "none"])
def test_the_end_of_a_turn_ends_an_answer(tmp_path: Path, files: Files) -> None:
    """A tokenizer's file names it, or the chat template alone, which writes it after a message."""
    model = TextModel.load(written(tmp_path / "a", files), EngineConfig(kv_cache_tokens=4096))
    answer = model.chat(STORY, "static", max_tokens=64)
    assert answer.completion.finish_reason == "stop"
    assert END in model.codec.end_tokens(())


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        ("{% for m in messages %}<|user|>{{ m.content }}<|end|>\n{% endfor %}", (END,)),
        ("{% for m in messages %}{{ m.content }} {% endfor %}", ()),
        ("{% for m in messages %}{{ m.content }}. <|end|>{% endfor %}", ()),  # the turn does not end there
        ("{{ raise_exception('no') }}", ()),
        (None, ()),
    ],
)
def test_the_end_of_a_templates_turn_is_the_control_token_behind_a_message(
    tmp_path: Path, template: str | None, ends: tuple[int, ...]
) -> None:
    codec = TextCodec.load(written(tmp_path / "a", {TOKENIZER: {"chat_template": template}}))
    assert codec.end_tokens([7]) == (7, *ends)


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens.json": {TEXT: END}},
        {"vocab.json": {TEXT: END}},
        {TOKENIZER: {"eos_token": TEXT, "added_tokens_decoder": {"3": {"content": TEXT}}}},
    ],
    ids=["added_tokens", "vocab", "added_tokens_decoder"],
)
def test_a_folder_without_tokenizer_json_has_its_tokens_in_other_files(tmp_path: Path, files: Files) -> None:
    folder = written(tmp_path / "a", {TOKENIZER: {"eos_token": TEXT}} | files)
    (folder / "tokenizer.json").unlink()
    assert read_config(folder)["eos_token_id"] == [END]


def test_a_list_of_pieces_is_a_vocabulary(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", {TOKENIZER: {"eos_token": "</s>"}})
    pieces = [["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0]]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": pieces}}))
    assert read_config(folder)["eos_token_id"] == [2]


def test_a_familys_default_counts_where_no_file_names_one(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", {CONFIG: {"eos_token_id": None, "vocab_size": 157184}}, GOLDEN / LLADA2_NAME)
    assert parse_config(read_config(folder)).eos_token_ids == (156892,)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        *(
            (name, "eos_token_id", value, f"{name}: eos_token_id is {text}, expected an integer or a list of integers")
            for name in (CONFIG, GENERATION)
            for value, text in (
                ([[3]], r"\[\[3\]\]"), ("3", "'3'"), (3.0, r"3\.0"), (True, "True"), ({"a": 3}, r"\{'a': 3\}")
            )
        ),
        *(
            (name, "eos_token_id", value, f"{name}: eos_token_id {value} is outside the vocabulary of 512")
            for name in (CONFIG, GENERATION)
            for value in (-1, 512, 2**70)
        ),
        *(
            (name, "eos_token", value, f"{name}: eos_token is .*, expected a text or an object with a text as")
            for name in (TOKENIZER, MAP)
            for value in (3, True, [TEXT], {"content": 5}, 2.5)
        ),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_by_file_and_key(
    tmp_path: Path, name: str, key: str, value: object, message: str
) -> None:
    folder = written(tmp_path / "a", {name: {key: value}}, GOLDEN / GOLDEN_NAMES[0])
    with pytest.raises(CheckpointError, match=message):
        read_config(folder)


@pytest.mark.parametrize("name", [GENERATION, TOKENIZER, MAP])
@pytest.mark.parametrize("content", ["[1", "[]", "3", "null", "[" * 100_000, "\ufeff{}"], ids=lambda text: text[:9])
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, name: str, content: str) -> None:
    folder = written(tmp_path / "a", {})
    (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=f"{name} cannot be read: "):
        read_config(folder)
