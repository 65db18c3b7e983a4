"""Checkpoints of other kinds behind POST /generate: bare backbones, chat templates, byte-level tokenizers."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from service.errors import CheckpointError, SettingsError
from service.model import Checkpoint, load_checkpoint, save_checkpoint
from service.replica.replica import Replica
from tests.gateway.conftest import UNMEASURED, MakeGenerator
from tests.gateway.generate.helpers import CASES, UNKNOWN, ask, body, essence, frames, refused, streamed
from tests.gateway.helpers import over
from tests.replicas import local_generator
from tests.tiny import GOLDEN, I_DLM_NAME, golden

SOURCE = GOLDEN / "sdar-mrp-random-a"
TEMPLATE = (
    "{% for m in messages %}w1 {{ m['role'] }} {{ m['content'] }} <|pad|> {% endfor %}"
    "{% if add_generation_prompt %}w2{% endif %}"
)


def copied(path: Path, **tokenizer_config: str) -> Checkpoint:
    """The golden checkpoint elsewhere, with more in its tokenizer_config.json."""
    shutil.copytree(SOURCE, path, dirs_exist_ok=True)
    config = json.loads((path / "tokenizer_config.json").read_text("utf-8")) | tokenizer_config
    (path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return load_checkpoint(path)


async def test_a_published_module_of_the_hub(settings, tmp_path):
    """Its kind is known by its name, and clients see its commit."""
    folder = tmp_path / "models--heavyball--sdar-4b-mrp-3lyr-k2" / "snapshots" / "0123abc"
    hub = settings.model_copy(update={"model": "heavyball/sdar-4b-mrp-3lyr-k2"})
    replica = local_generator("r0", copied(folder), hub, deps=UNMEASURED)
    async with over(replica) as http:
        [card] = (await http.get("/v1/models")).json()["data"]
    replica.close()
    assert card["id"] == "sdar-4b-mrp-3lyr-k2"
    assert card["weights"] == {"model": "sdar-4b-mrp-3lyr-k2@0123abc", "version": 0}
    assert (card["block_size"], card["mrp"]["scale"], card["mrp"]["residual"]) == (16, 2.0, True)


class TestWithoutMrp:
    @pytest.fixture
    def bare(self, tmp_path: Path, checkpoint: Checkpoint) -> Checkpoint:
        mrp = ("num_mrp_heads", "num_nextn_predict_layers")
        raw = {name: value for name, value in checkpoint.raw.items() if name not in mrp}
        save_checkpoint(tmp_path, raw, checkpoint.backbone, None)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(SOURCE / name, tmp_path)
        return load_checkpoint(tmp_path)

    @pytest.mark.parametrize("mode", ["direct", "speculative", "remask"])
    async def test_modes_of_mrp_name_those_there_are(self, make_generator, bare, mode):
        async with over(make_generator("r0", bare)) as http:
            detail = await refused(http, body(mode=mode, **({} if mode == "remask" else {"mrp_steps": 1})))
        assert (detail["code"], detail["param"]) == ("mode_not_available", "mode")
        has_none = f"mode {mode!r} needs MRP and this checkpoint has none"
        assert (
            detail["message"]
            == f"{has_none}; it serves static, dynamic, sequential, entropy, speculative with mrp_steps auto or 0, edit"
        )

    async def test_speculative_drafts_without_mrp(self, make_generator, bare):
        tree = {"mrp_steps": 0, "max_drafts": 4}
        async with over(make_generator("r0", bare)) as http:
            static, drafted = await ask(http, body(mode="static")), await ask(http, body(mode="speculative", **tree))
        assert drafted["token_ids"] == static["token_ids"]
        assert drafted["stats"]["forwards"]["verify"] > 0 == drafted["stats"]["forwards"]["mrp"]
        assert drafted["stats"]["drafts_accepted"] > 0

    async def test_the_default_leaves_drafts_to_the_engine(self, make_generator, bare):
        async with over(make_generator("r0", bare)) as http:
            (model,) = (await http.get("/v1/models")).json()["data"]
            answer = await ask(http, body(mode=None))
            assert "needs MRP" in (await refused(http, body(mode=None, mrp_steps=2)))["message"]
        served = ["static", "dynamic", "sequential", "entropy", "speculative", "edit"]
        assert (model["mrp"], model["modes"], model["default_mode"]) == (None, served, "speculative")
        assert model["defaults"].keys() == set(served)
        assert model["defaults"]["speculative"] == {"mrp_steps": "auto"}
        assert (answer["mode"], answer["stats"]["mrp_steps"]) == ("speculative", 0)
        assert answer["token_ids"] == CASES[0]["token_ids"]

    def test_a_default_mode_it_has_not(self, make_generator, bare):
        served = "static, dynamic, sequential, entropy, speculative, edit"
        wanted = f"default_mode is 'remask', this checkpoint has no MRP and serves {served}"
        with pytest.raises(SettingsError, match=wanted):
            make_generator("r0", bare, default_mode="remask")


class TestCausal:
    async def test_drafts_change_no_token_and_take_fewer_forwards(self, make_generator):
        fields = {"prompt_token_ids": [20, 30, 40], "max_new_tokens": 20, "seed": 5, "temperature": 0.7}
        async with over(make_generator("r0", golden(I_DLM_NAME))) as http:
            (model,) = (await http.get("/v1/models")).json()["data"]
            plain, drafted = [await ask(http, body(mode=mode, **fields)) for mode in ("sequential", None)]
        assert model["modes"] == ["static", "dynamic", "sequential", "entropy", "speculative"]
        assert drafted["token_ids"] == plain["token_ids"]
        assert drafted["stats"]["forwards"]["verify"] > 0 == drafted["stats"]["forwards"]["commit"]

    async def test_modes_that_change_tokens_are_refused(self, make_generator):
        async with over(make_generator("r0", golden(I_DLM_NAME))) as http:
            detail = await refused(http, body(mode="edit", mrp_steps=None))
        assert (detail["code"], detail["param"]) == ("mode_not_available", "mode")
        assert (
            "mode 'edit' changes tokens by those after them, which this causal model does not see" in detail["message"]
        )

    def test_a_default_mode_it_has_not(self, make_generator):
        with pytest.raises(SettingsError, match="default_mode is 'edit', this checkpoint is causal and serves static"):
            make_generator("r0", golden(I_DLM_NAME), default_mode="edit")


class TestChat:
    @pytest.fixture
    def chatty(self, make_generator: MakeGenerator, tmp_path: Path) -> Replica:
        return make_generator("r0", copied(tmp_path, chat_template=TEMPLATE))

    async def test_messages_are_the_templates_text(self, chatty):
        messages = [{"role": "system", "content": "w5 w6"}, {"role": "user", "content": "w7"}]
        async with over(chatty) as http:
            answer = await ask(http, body(prompt_token_ids=None, messages=messages, seed=1))
            ids = [1, UNKNOWN, 5, 6, 508, 1, UNKNOWN, 7, 508, 2]
            assert essence(answer) == essence(await ask(http, body(prompt_token_ids=ids, seed=1)))
            assert (await http.get("/v1/models")).json()["data"][0]["chat_template"] is True

    async def test_control_tokens_in_messages_are_text(self, chatty):
        messages = [{"role": "user", "content": "w5 <|MASK|> <|eos|> <|pad|>"}, {"role": "assistant", "content": ""}]
        async with over(chatty) as http:
            answer = await ask(http, body(prompt_token_ids=None, messages=messages, seed=1))
            ids = [1, UNKNOWN, 5, UNKNOWN, UNKNOWN, UNKNOWN, 508, 1, UNKNOWN, 508, 2]
            assert essence(answer) == essence(await ask(http, body(prompt_token_ids=ids, seed=1)))

    async def test_a_template_that_refuses(self, make_generator, tmp_path):
        late = "{% if messages[1].role == 'user' %}{{ raise_exception('no system') }}{% endif %}"
        model = copied(tmp_path, chat_template=late + TEMPLATE)
        async with over(make_generator("r0", model)) as http:
            detail = await refused(http, body(prompt_token_ids=None, messages=[{"role": "user", "content": "a"}] * 2))
        assert detail["param"] == "messages"
        assert detail["message"] == "the chat template refuses these messages: no system"

    async def test_a_template_that_cannot_be_used_is_said_when_it_is_loaded(self, make_generator, tmp_path, caplog):
        broken = make_generator("r0", copied(tmp_path, chat_template="{{ raise_exception('never') }}"))
        async with over(broken) as http:
            (model,) = (await http.get("/v1/models")).json()["data"]
            detail = await refused(http, body(prompt_token_ids=None, messages=[{"role": "user", "content": "a"}]))
            await ask(http, body(prompt_token_ids=None, prompt="w5"))
        assert model["chat_template"] is False
        assert detail["param"] == "messages"
        assert detail["message"] == "the chat template cannot be used: never"
        assert detail["message"] in caplog.messages


class TestFewerRows:
    """A model with 511 tokens, and a tokenizer with one more: the unknown word."""

    @pytest.fixture
    def small(self, make_generator: MakeGenerator, tmp_path: Path) -> Replica:
        raw = copied(tmp_path, chat_template=TEMPLATE).raw
        (tmp_path / "config.json").write_text(json.dumps({**raw, "vocab_size": UNKNOWN}), "utf-8")
        weights = load_file(tmp_path / "model.safetensors")
        cut = {name: weights[name][:UNKNOWN].clone() for name in ("model.embed_tokens.weight", "lm_head.weight")}
        save_file(weights | cut, tmp_path / "model.safetensors")
        return make_generator("r0", load_checkpoint(tmp_path))

    async def test_a_text_with_a_token_that_the_model_lacks_is_refused_in_words_about_it(self, small):
        allowed = f"the model takes tokens 0 to {UNKNOWN - 1} without the mask token 509"
        fields = {"prompt": "w5 unheard", "messages": [{"role": "user", "content": "w5 unheard"}]}
        async with over(small) as http:
            for name, value in fields.items():
                detail = await refused(http, body(prompt_token_ids=None, **{name: value}))
                assert detail["param"] == name
                assert detail["message"] == f"{name} has text that is token {UNKNOWN} of the tokenizer, {allowed}"
                answer = await http.post(
                    "/v1/score", json={"model": "golden", "items": [{name: value}], "labels": ["w1"]}
                )
                assert f"has text that is token {UNKNOWN} of the tokenizer" in answer.text
            detail = await refused(http, body(bad_words=["unheard"]))
            assert (detail["param"], detail["message"][:23]) == ("bad_words", f"bad_words has token {UNKNOWN}")
            detail = await refused(http, body(prompt_token_ids=[UNKNOWN]))
            assert detail["message"] == f"prompt_token_ids has {UNKNOWN}, allowed are 0 to {UNKNOWN - 1}"
            await ask(http, body(prompt_token_ids=None, prompt="w5", stop_token_ids=[UNKNOWN]))

    async def test_its_constrained_answers_have_the_models_tokens_only(self, small):
        fields = {"choice": ["w5 w6", "unheard"], "max_new_tokens": 16}
        async with over(small) as http:
            answer = await http.post("/generate", json=body(prompt_token_ids=[5], **fields))
        assert answer.status_code in {200, 422}
        assert UNKNOWN not in answer.json().get("token_ids", [])

    @pytest.mark.usefixtures("small")
    def test_it_is_said_at_the_start(self, caplog):
        [message] = [record.getMessage() for record in caplog.get_records("setup")]
        assert message.startswith(f"the tokenizer has 1 tokens beyond the model's {UNKNOWN}, from {UNKNOWN} on")


class TestBytes:
    """One token a byte, so that a random model writes broken and whole characters over all borders."""

    @pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
    async def test_frames_hold_whole_characters(self, bytewise, seed):
        request = body(temperature=3, seed=seed, max_new_tokens=64, ignore_eos=True)
        async with over(bytewise) as http:
            answer = await ask(http, request)
            assert essence(await streamed(http, request)) == essence(answer)
            pieces = [frame.get("text", "") for _, frame in await frames(http, request)]
            stop = answer["text"][20:24]
            stopped = await ask(http, request | {"stop": stop})
            assert essence(await streamed(http, request | {"stop": stop})) == essence(stopped)
        assert answer["text"] == bytewise.codec.decode(answer["token_ids"])
        assert any(ord(letter) > 127 for letter in answer["text"])
        assert stopped["text"] == answer["text"][: answer["text"].index(stop)]
        for piece, following in pairwise(pieces):
            assert not (piece.endswith("\ufffd") and following.startswith("\ufffd"))

    async def test_control_tokens_in_text_are_their_letters(self, bytewise):
        async with over(bytewise) as http:
            for text in ("<|MASK|>", "<|eos|><|pad|>", "日本語😀"):
                answer = await ask(http, body(prompt_token_ids=None, prompt=text, max_new_tokens=1))
                assert answer["usage"]["prompt_tokens"] == len(text.encode())


@pytest.mark.filterwarnings("ignore:`rope_scaling`:FutureWarning")  # transformers, in search of a tokenizer
def test_without_a_tokenizer(make_generator, tmp_path, checkpoint):
    save_checkpoint(tmp_path, checkpoint.raw, checkpoint.backbone, checkpoint.mrp)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        make_generator("r0", load_checkpoint(tmp_path))


class TestModels:
    async def test_a_model_has_its_name_modes_and_defaults(self, http):
        answer = (await http.get("/v1/models")).json()
        assert answer["object"] == "list"
        (model,) = answer["data"]
        assert model["mrp"].pop("num_layers") == 2
        assert model["defaults"] == {
            "static": {"tokens_per_step": 1},
            "dynamic": {"threshold": 0.9},
            "sequential": {"tokens_per_step": 1, "entropy_bound": 0.0},
            "entropy": {"entropy_bound": 0.1},
            "direct": {"mrp_steps": model["mrp"]["default_steps"]},
            "speculative": {"mrp_steps": "auto"},
            "remask": {"threshold": 0.9},
            "edit": {"threshold": 0.7, "edit_threshold": 0.5, "max_post_edit_steps": 16},
        }
        names = ("id", "object", "owned_by", "block_size", "vocab_size", "max_model_len", "chat_template")
        assert [model[name] for name in names] == ["golden", "model", "mrp-serve", 8, 512, 2048, True]
