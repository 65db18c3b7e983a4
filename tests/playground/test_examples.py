"""The examples of a checkpoint's card reach GET /v1/models, and a broken card stops nothing."""

import pytest

from service.messages.replica_status import Example
from service.replica.card import read_examples


def card(folder, front):
    (folder / "README.md").write_text(f"---\n{front}\n---\n\n# A model\n", "utf-8")
    return read_examples(folder)


def test_texts_and_chats_of_the_hubs_form(tmp_path):
    front = "widget:\n- text: once\n  example_title: A tale\n- messages: [{role: user, content: hi there}]"
    tale = Example("A tale", text="once")
    assert card(tmp_path, front) == (tale, Example("hi there", messages=({"role": "user", "content": "hi there"},)))


@pytest.mark.parametrize(
    "front",
    [
        "widget: soon",
        "widget:\n- text: 7",
        "widget:\n- messages: [{role: user}]",
        "widget: [",
        "- a list",
        "",
        "[" * 100_000,
    ],
    ids=lambda front: front[:9],
)
def test_an_entry_without_a_prompt_is_left_out(tmp_path, front):
    assert card(tmp_path, front) == ()


def test_cards_that_cannot_be_read(tmp_path):
    assert read_examples(tmp_path) == ()
    (tmp_path / "README.md").write_bytes(b"---\nwidget:\n- text: \xff\n---\n")
    assert read_examples(tmp_path) == ()
