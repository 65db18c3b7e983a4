"""Bodies that the documentation allows, for any of the three routes: every field at its limits and beside them."""

import random
from dataclasses import dataclass
from typing import Any

from tests.extremes import drawn_knobs, drawn_margin, drawn_prompt, drawn_sampling

ROUTES = ("/generate", "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/score")
#: what OpenAI's routes allow
_WARMEST = 2
_STOPS = ("w7", " ", "a", "\n", "\u0000", "\u202e", "👩🏽‍🚀", "w1 w2 w3", "x" * 2000)
_TEXTS = ("w5 w6", "w5", " ", "w5 " * 60, "<|MASK|>", "\u0301", "a\u0000b", "{{ 7 * 7 }}", "</think>", "w509 w510")


@dataclass(frozen=True)
class Served:
    """What bodies depend on. `allowed`: token ids that prompts may have."""

    model: str
    block_size: int
    max_model_len: int
    allowed: list[int]
    chat: bool


def valid_request(rng: random.Random, served: Served) -> tuple[str, dict[str, Any]]:
    route = rng.choice(ROUTES if served.chat else (*ROUTES[:2], "/v1/score"))
    longest = rng.choice([served.block_size + 1, 24, 64, served.max_model_len])
    prompt = drawn_prompt(rng, served.allowed, longest - 1, served.block_size)
    room = served.max_model_len - max(len(prompt), 200)
    tokens = rng.choice([1, 2, served.block_size, rng.randint(1, 40), rng.choice([40, room])])
    body = {**drawn_knobs(rng, served.block_size), **drawn_sampling(rng), **_shared(rng, served)}
    body |= drawn_margin(rng, body)
    body["logit_bias"] = {token: bias for token, bias in body.get("logit_bias", {}).items() if token in served.allowed}
    body["min_tokens"] = min(body.get("min_tokens", 0), tokens)
    if route == "/v1/score":
        return route, _question(rng, served, prompt)
    if route == "/generate":
        body |= {"max_new_tokens": tokens, **_some_prompt(rng, prompt, served.chat)}
        body |= {"n": rng.choice([1, 1, 1, 3]), "return_step_map": rng.random() < 0.3}
        return route, body | {"stream_steps": bool(body.get("stream")) and rng.random() < 0.5}
    if route in {"/v1/messages", "/v1/responses"}:
        return route, _other_chat(rng, route, body | {"model": served.model}, tokens)
    body |= {"model": served.model, "max_tokens": tokens, "n": rng.choice([1, 1, 1, 2, 3])}
    body["return_step_map"] = rng.random() < 0.3
    body["temperature"] = min(_WARMEST, body.get("temperature", 0))
    if route == "/v1/completions":
        texts = rng.choice([rng.choice(_TEXTS), list(_TEXTS[:2])])
        return route, body | {"prompt": rng.choice([prompt, texts])}
    return route, body | {"messages": _messages(rng)}


def _other_chat(rng: random.Random, route: str, body: dict[str, Any], tokens: int) -> dict[str, Any]:
    messages = _messages(rng)
    if route == "/v1/responses":
        fields = {
            "max_output_tokens": tokens,
            "input": rng.choice([messages, "w5"]),
            "instructions": rng.choice(["w1", None]),
        }
        return body | fields | {"temperature": min(_WARMEST, body.get("temperature", 0))}
    stop = [body.pop("stop")] if "stop" in body else []
    fields = {"max_tokens": rng.choice([tokens, 10**6]), "messages": messages, "system": rng.choice(["w1", []])}
    fields["stop_sequences"] = stop[0] if stop and isinstance(stop[0], list) else stop
    return body | fields | {"temperature": min(1, body.get("temperature", 0))}


def _question(rng: random.Random, served: Served, prompt: list[int]) -> dict[str, Any]:
    """Masked positions anywhere in a text, in any form."""
    marked = [None if rng.random() < 16 / len(prompt) else token for token in prompt]
    marked = marked if marked.count(None) <= 32 else prompt
    items: list[dict[str, Any]] = [{"prompt_token_ids": marked}, {"prompt": rng.choice(_TEXTS)}]
    items.append({"prompt": "w5 w6 ?? w7 ??", "mark": "??"})
    if served.chat:
        items.append({"messages": _messages(rng)})
    labels = rng.choice([{"labels": ["w7", "w8"]}, {"label_token_ids": served.allowed[:100]}, {"top_logprobs": 20}])
    names = ("timeout_s", "cache_salt", "priority")
    shared = {name: value for name, value in _shared(rng, served).items() if name in names}
    return {"model": served.model, "items": rng.choices(items, k=rng.choice([1, 1, 4])), **labels, **shared}


def _some_prompt(rng: random.Random, prompt: list[int], chat: bool) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [{"prompt_token_ids": prompt}, {"prompt": rng.choice(_TEXTS)}]
    return rng.choice([*kinds, {"messages": _messages(rng)}] if chat else kinds)


def _messages(rng: random.Random) -> list[dict[str, str]]:
    roles = rng.choice([["user"], ["system", "user"], ["user", "assistant", "user"]])
    return [{"role": role, "content": rng.choice([*_TEXTS, ""])} for role in roles]


def _shared(rng: random.Random, served: Served) -> dict[str, Any]:
    fields = {
        "stop": rng.choice([_STOPS[0], list(_STOPS), list(rng.choices(_STOPS, k=16))]),
        "stop_token_ids": rng.choice([[], [0], served.allowed[:1024], [2**31, 2**63, 10**30]]),
        "ignore_eos": rng.random() < 0.5,
        "stream": rng.random() < 0.5,
        "timeout_s": rng.choice([5e-324, 1e-9, 0.001, 0.05, 599.9, 600]),
        "return_trace": rng.random() < 0.5,
        "cache_salt": rng.choice(["a", "\u0000", "x" * 256, "👩🏽‍🚀"]),
        "prompt_cache_key": rng.choice(["a", "\u0000", "x" * 512]),
        "priority": rng.randint(0, 9),
    }
    return {name: value for name, value in fields.items() if rng.random() < 0.3}
