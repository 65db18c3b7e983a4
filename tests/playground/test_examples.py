"""The examples of a checkpoint's card reach GET /v1/models, and a broken card stops nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_core import to_json

from service.api.models import Model, model_json
from service.demo import CHECKPOINT
from service.messages.replica_status import Example
from service.replica.card import read_examples
from tests.gateway.doubles import CARD
from tests.gateway.helpers import assert_shape


def card(folder: Path, front: str) -> tuple[Example, ...]:
    (folder / "README.md").write_text(f"---\n{front}\n---\n\n# A model\n", "utf-8")
    return read_examples(folder)


def test_the_demo_has_chats_and_a_text() -> None:
    examples = read_examples(CHECKPOINT)
    assert examples[0].messages == ({"role": "user", "content": "Tom has 5 apples, gets 3, loses 2."},)
    assert any(example.text for example in examples)


def test_texts_and_chats_of_the_hubs_form(tmp_path: Path) -> None:
    front = "widget:\n- text: once\n  example_title: A tale\n- messages: [{role: user, content: hi there}]"
    tale = Example("A tale", text="once")
    assert card(tmp_path, front) == (tale, Example("hi there", messages=({"role": "user", "content": "hi there"},)))


@pytest.mark.parametrize(
    "front",
    [
        "license: mit",
        "widget: soon",
        "widget:\n- src: picture.png",
        "widget:\n- text: 7",
        "widget:\n- text: ''",
        "widget:\n- messages: []",
        "widget:\n- messages: [{role: user}]",
        "widget: [",
        "- a list",
        "",
    ],
)
def test_an_entry_without_a_prompt_is_left_out(tmp_path: Path, front: str) -> None:
    assert card(tmp_path, front) == ()


def test_cards_that_cannot_be_read(tmp_path: Path) -> None:
    assert read_examples(tmp_path) == ()
    (tmp_path / "README.md").write_text("# No front matter\n---\nwidget:\n- text: a\n---\n", "utf-8")
    assert read_examples(tmp_path) == ()
    (tmp_path / "README.md").write_bytes(b"---\nwidget:\n- text: \xff\n---\n")
    assert read_examples(tmp_path) == ()


def test_titles_are_short_and_examples_few(tmp_path: Path) -> None:
    many = "widget:\n" + "\n".join(f"- text: {'word ' * 40}{number}" for number in range(40))
    examples = card(tmp_path, many)
    assert len(examples) == 12
    assert all(len(example.title) == 60 for example in examples)
    assert examples[0].text == "word " * 40 + "0"


def test_the_answer_has_the_shape_that_is_documented() -> None:
    examples = (Example("a", text="b"), Example("c", messages=({"role": "user", "content": "d"},)))
    model = json.loads(to_json(model_json(replace(CARD, examples=examples))))
    assert_shape(Model, model)
    assert model["examples"] == [
        {"title": "a", "text": "b"},
        {"title": "c", "messages": [{"role": "user", "content": "d"}]},
    ]
