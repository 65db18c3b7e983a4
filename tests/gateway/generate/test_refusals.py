"""Bodies, fields and prompts that are refused: the status, the one shape of errors, and the message."""

import codecs
import gzip
import json
from typing import Any

import pytest

from service.decode.modes import MODES
from service.model import load_checkpoint
from tests.gateway.generate.helpers import GENERATE, LENGTH, MASK, VOCABULARY, ask, body, problem, refused
from tests.gateway.helpers import over
from tests.tiny import GOLDEN

CHAT = [{"role": "user", "content": "a"}]
NO_PROMPT: dict[str, Any] = {"prompt_token_ids": None}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b'{"prompt": "a",}', "the body is not JSON: trailing comma"),
        (b'{"prompt": "\xff"}', "the body is not JSON: invalid unicode"),
        (b'{"prompt": "a", "top_p": NaN}', "the body is not JSON"),
        (b"[" * 5000, "the body is not JSON: recursion limit"),
        (b'{"prompt": "a", "max_new_tokens": ' + b"9" * 5000 + b"}", "the body is not JSON: number out of range"),
        (b"[1, 2]", "the body is [1, 2], a JSON object is expected"),
        (b"null", "the body is null, a JSON object is expected"),
        (codecs.BOM_UTF8 * 2 + b"{}", "the body is not JSON"),
        ('{"prompt": "a"}'.encode("utf-16"), "the body is not JSON"),
        (gzip.compress(b"{}", mtime=0), "the body is not JSON"),
        (b"{}\0", "the body is not JSON"),
        (b"{}{}", "the body is not JSON"),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(http, content, text):
    detail = problem(await http.post(GENERATE, content=content), 422)
    assert text in detail["message"]
    assert (detail["code"], detail["param"]) == ("invalid_request", None)
    assert len(detail["message"]) < 300


#: fields, and a part of the message, which begins with the wrong parameter
NAMED: list[tuple[dict[str, Any], str]] = [
    ({"max_new_tokens": "12"}, 'max_new_tokens is "12": Input should be a valid integer'),
    ({"max_new_tokens": 0}, "max_new_tokens is 0: Input should be greater than or equal to"),
    ({"temperature": -0.1}, "temperature is -0.1: Input should be greater than or equal to 0"),
    ({"temperature": 101}, "temperature is 101: Input should be less than or equal to 100"),
    ({"top_p": 0}, "top_p is 0: Input should be greater than 0"),
    ({"top_k": -1}, "top_k is -1: Input should be greater than or equal to 0"),
    ({"min_p": 1.1}, "min_p is 1.1: Input should be less than or equal to 1"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0: Input should be greater than"),
    ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1: Input should be greater"),
    ({"logit_bias": {"w5": 1}}, 'logit_bias.w5.[key] is "w5": Input should be a valid'),
    ({"logit_bias": {"5": -101}}, "logit_bias.5 is -101: Input should be greater than"),
    ({"logit_bias": {"512": 1}}, "logit_bias has token 512, allowed are 0 to 511 without"),
    ({"min_tokens": 17}, "min_tokens is 17, allowed are 0 to max_new_tokens, 16"),
    ({"bad_words": ["w5", " "]}, 'bad_words.1 is " ": String should match'),
    ({"seed": -1}, "seed is -1: Input should be greater than or equal to 0"),
    ({"stop": ["a", 1]}, "stop.1"),
    ({"stop_token_ids": ["a"]}, 'stop_token_ids.0 is "a"'),
    ({"ignore_eos": 1}, "ignore_eos is 1: Input should be a valid boolean"),
    ({"priority": -1}, "priority is -1: Input should be greater than or equal to 0"),
    ({"priority": 10}, "priority is 10: Input should be less than or equal to 9"),
    ({"cache_salt": ""}, 'cache_salt is "": String should have at least 1 character'),
    ({"cache_salt": "x" * 257}, "cache_salt is"),
    ({"prompt_cache_key": "x" * 513}, "prompt_cache_key is"),
    ({"timeout_s": 0}, "timeout_s is 0: Input should be greater than 0"),
    ({"timeout_s": 600.5}, "timeout_s is 600.5, allowed is 0 < timeout_s <= 600.0"),
    ({"prompt_token_ids": [1, 2.5]}, "prompt_token_ids.1 is 2.5"),
    ({"mode": "static", "tokens_per_step": 9}, "tokens_per_step is 9, allowed are 1 to 8"),
    ({"mode": "speculative", "mrp_steps": 0}, "mrp_steps is 0"),
    ({"mode": "direct", "mrp_steps": "auto"}, "mrp_steps is auto, allowed are 1 to 8"),
    ({"mode": "dynamic", "threshold": 0}, "threshold is 0: Input should be greater than 0"),
    ({"mode": "entropy", "entropy_bound": -0.1}, "entropy_bound is -0.1: Input should be greater than or equal"),
    ({"mode": "speculative", "margin": 0}, "margin is 0: Input should be greater than 0"),
    ({"mode": "speculative", "verify": "direct"}, 'verify is "direct"'),
    ({"mode": "speculative", "entropy_bound": 0.1}, "entropy_bound is 0.1, drafts are verified against static"),
    ({**NO_PROMPT, "prompt": ""}, 'prompt is "": String should have at least 1 character'),
    ({**NO_PROMPT, "messages": []}, "messages is []"),
]
#: fields, the wrong parameter, and a part of the message
OTHERS: list[tuple[dict[str, Any], str | None, str]] = [
    ({"seed": 2**63}, "seed", f"seed is {2**63}: Input should be less than or equal to {2**63 - 1}"),
    ({"stop": ["a"] * 17}, "stop", "at most 16 items"),
    ({"max_tokens": 5}, "max_tokens", "max_tokens is 5 and max_new_tokens is 16: they are one field, send one of them"),
    ({"temprature": 5}, "temprature", "did you mean 'temperature'?"),
    ({"": 5}, None, "is not a field"),
    ({"mode": "speculative", "mrp_steps": "many"}, "mrp_steps", "Input should be a whole number or 'auto'"),
    (
        {"mode": "speculative", "margin": 0.5, "temperature": 0.7, "top_p": 0.9},
        "margin",
        "top_p is 0.9, top_k 0 and min_p 0.0, allowed with a margin are top_p 1, top_k 0 and min_p 0, or",
    ),
    ({**NO_PROMPT}, "messages", "none of them given, exactly one of prompt, prompt_token_ids, messages is allowed"),
    ({**NO_PROMPT, "prompt": "a", "prompt_token_ids": [1]}, "prompt_token_ids", "prompt and prompt_token_ids given"),
    ({**NO_PROMPT, "prompt": "a", "messages": CHAT}, "messages", "prompt and messages given"),
    ({**NO_PROMPT, "prompt": " \n "}, "prompt", "the prompt is empty, at least one token is needed"),
    ({**NO_PROMPT, "messages": [{"role": "user"}]}, "messages.0.content", "is missing"),
    (
        {**NO_PROMPT, "messages": [{"role": "user", "content": "a", "nam": "b"}]},
        "messages.0.nam",
        "'nam' is not a field of a message; ",
    ),
]


@pytest.mark.parametrize(
    ("fields", "param", "text"), [*((fields, text.split()[0], text) for fields, text in NAMED), *OTHERS]
)
async def test_a_wrong_field_is_named(http, fields, param, text):
    detail = await refused(http, body(**fields))
    assert (detail["code"], detail["param"]) == ("invalid_request", param)
    assert text in detail["message"]


async def test_several_wrong_fields_are_all_named(http):
    detail = await refused(http, body(top_p=7, top_k=-7, seeds=1))
    for message in ("top_p is 7", "top_k is -7", "'seeds' is not a field; did you mean 'seed'?"):
        assert message in detail["message"]


@pytest.mark.parametrize(
    ("mode", "knob", "users", "its_knobs"),
    [
        ("static", {"threshold": 0.5}, "dynamic, direct, speculative, remask, edit", "tokens_per_step"),
        ("remask", {"margin": 0.5}, "speculative", "threshold"),
        ("direct", {"margin": 0.5}, "speculative", "mrp_steps, threshold"),
    ],
)
async def test_a_knob_of_another_mode_is_refused(http, mode, knob, users, its_knobs):
    (name,) = knob
    detail = await refused(http, body(mode=mode, **knob))
    assert detail["param"] == name
    assert detail["message"] == f"mode {mode!r} does not use {name} ({users} do); its knobs are {its_knobs}"


@pytest.mark.parametrize("mode", ["fast", "", "STATIC", 5, [], {}, True])
async def test_an_unknown_mode_is_refused(http, mode):
    detail = await refused(http, body() | {"mode": mode})
    assert detail["param"] == "mode"
    assert detail["message"] == f"mode is {json.dumps(mode)}, allowed are {', '.join(MODES)}"


@pytest.mark.parametrize(("prompt", "room"), [(8, 2040), (2047, 1), (2048, 0), (5000, 0)])
async def test_a_prompt_that_is_too_long_is_refused_with_both_lengths(http, prompt, room):
    request = body(prompt_token_ids=[1] * prompt, max_new_tokens=room + 1)
    detail = await refused(http, request)
    assert (detail["code"], detail["param"]) == ("prompt_too_long", "max_new_tokens")
    lengths = f"{prompt} prompt tokens and max_new_tokens {room + 1} are {prompt + room + 1} tokens"
    assert detail["message"] == f"This model's maximum context length is {LENGTH} tokens. However, {lengths}."


async def test_the_longest_prompt_is_answered(http):
    assert len((await ask(http, body(prompt_token_ids=[1] * 2046, max_new_tokens=2)))["token_ids"]) <= 2


async def test_the_operators_context_length_holds(make_generator):
    async with over(make_generator(max_model_len=30)) as http:
        assert (
            "maximum context length is 30 tokens. However, 8 prompt tokens and max_new_tokens 23"
            in (await refused(http, body(max_new_tokens=23)))["message"]
        )
        await ask(http, body(max_new_tokens=22))


async def test_messages_need_a_chat_template(make_generator):
    bare = make_generator("r0", load_checkpoint(GOLDEN / "sdar-mrp-random-a"))
    async with over(bare) as http:
        (model,) = (await http.get("/v1/models")).json()["data"]
        detail = await refused(http, body(prompt_token_ids=None, messages=CHAT))
    assert model["chat_template"] is False
    assert detail["param"] == "messages"
    assert detail["message"] == "this checkpoint has no chat template; send `prompt` instead"


@pytest.mark.parametrize("token", [VOCABULARY, -1, 2**63 - 1])
async def test_a_token_out_of_the_vocabulary_is_refused(http, token):
    detail = await refused(http, body(prompt_token_ids=[1, token]))
    assert detail["message"] == f"prompt_token_ids has {token}, allowed are 0 to {VOCABULARY - 1}"
    assert detail["param"] == "prompt_token_ids"


async def test_the_mask_token_is_refused(http):
    detail = await refused(http, body(prompt_token_ids=[1, MASK]))
    assert detail["message"] == f"prompt_token_ids has the mask token {MASK}, which prompts must not contain"
