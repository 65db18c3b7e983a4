"""The demo's tokenizer: any text survives it, control tokens are text unless asked, transformers loads it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from service.demo import grammar
from training.demo import tokenizer as tok


@pytest.fixture(scope="module")
def saved(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tok.save_tokenizer(tokenizer, folder)
    return AutoTokenizer.from_pretrained(folder)


@given(text=st.text())
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tok.encode_text(tokenizer, text), skip_special_tokens=False) == text


@pytest.mark.parametrize("name", tok.SPECIALS)
def test_control_tokens_in_plain_text_stay_text(tokenizer, name):
    text = f"a {name} b{name}"
    ids = tok.encode_text(tokenizer, text)
    assert tok.control(tokenizer, name) not in ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_words_of_the_tasks_are_single_tokens(tokenizer):
    for word in (*grammar.NAMES, *grammar.ITEMS, *grammar.LETTERS):
        assert len(tok.encode_text(tokenizer, " " + word)) == 1
    assert len(tok.encode_text(tokenizer, "1234")) == 4


def test_chat_template_writes_what_training_saw(tokenizer, saved):
    prompt = "Tom has 5 apples, gets 3."
    messages = [{"role": "user", "content": prompt}]
    rendered = saved.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == f"<|user|>{prompt}<|assistant|>"
    ids = saved.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids == tok.encode_prompt(tokenizer, prompt)
    answered = [*messages, {"role": "assistant", "content": "8"}]
    assert saved.apply_chat_template(answered, tokenize=False) == rendered + "8<|end|>"


def test_transformers_reads_the_saved_files(tokenizer, saved):
    assert saved.eos_token_id == tok.control(tokenizer, tok.END)
    assert saved.mask_token_id == tok.control(tokenizer, tok.MASK)
    rng = random.Random(0)
    text = "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x4E00, 0x9000)])) for _ in range(200))
    assert saved.decode(saved(text, split_special_tokens=True)["input_ids"]) == text


def test_an_unknown_control_token_is_an_error(tokenizer):
    with pytest.raises(ValueError, match="no token '<\\|nope\\|>'"):
        tok.control(tokenizer, "<|nope|>")
