"""Checks whether an engine can serve a request. Needs only the model's shape."""

from __future__ import annotations

from service.decode.block import MASKED
from service.decode.knobs import AUTO
from service.decode.mode import ScoreMode
from service.decode.registry import leaves_drafts_open, served_without_mrp
from service.engine.request import GenerationRequest
from service.errors import InvalidRequest, ModeNotAvailable, PromptTooLong
from service.model.config import ModelConfig


def validate(
    request: GenerationRequest, model: ModelConfig, max_model_len: int, *, deterministic: bool = False
) -> None:
    """InvalidRequest, or a subclass, which names the value received and the allowed values.

    `deterministic`: whether the answer may not depend on the load.
    """
    if request.params.needs_mrp and model.mrp is None:
        served = ", ".join(served_without_mrp())
        raise ModeNotAvailable(
            f"mode {request.params.mode!r} needs MRP and this checkpoint has none; it serves {served}", param="mode"
        )
    request.params.check(model.block_size)
    if request.params.drafts_decide:
        _check_drafts(request, deterministic=deterministic)
    scored = isinstance(request.params, ScoreMode)
    prompt = request.prompt_token_ids
    _check_prompt(tuple(token for token in prompt if token != MASKED) if scored else prompt, model, scored=scored)
    if scored and MASKED not in prompt:
        raise InvalidRequest("the text has no place to be read", param="prompt")
    if request.max_new_tokens < 1 and not scored:
        raise InvalidRequest(
            f"max_new_tokens is {request.max_new_tokens}, at least 1 is needed", param="max_new_tokens"
        )
    prompt_length = len(request.prompt_token_ids)
    if prompt_length + request.max_new_tokens > max_model_len:
        raise PromptTooLong(
            f"{prompt_length} prompt tokens and max_new_tokens {request.max_new_tokens} are "
            f"{prompt_length + request.max_new_tokens} tokens, allowed are {max_model_len}",
            param="max_new_tokens",
        )


def _check_drafts(request: GenerationRequest, *, deterministic: bool) -> None:
    """InvalidRequest where it is not defined which of the drafts that decide are accepted."""
    sampling = request.sampling
    if sampling.temperature and sampling.filtered:
        raise InvalidRequest(
            f"top_p is {sampling.top_p} and top_k is {sampling.top_k}, allowed with a margin are top_p 1 and top_k 0, "
            "or temperature 0: the margin is between the two likeliest tokens, of which the other fields may leave one "
            "out",
            param="margin",
        )
    if deterministic and leaves_drafts_open(request.params):
        raise InvalidRequest(
            f"mrp_steps is {AUTO!r}, allowed with a margin is a number: this server is deterministic, and the load "
            "would choose the drafts, and they the answer",
            param="mrp_steps",
        )


def _check_prompt(prompt: tuple[int, ...], model: ModelConfig, *, scored: bool) -> None:
    if not prompt and not scored:
        raise InvalidRequest("the prompt is empty, at least one token is needed", param="prompt")
    bad = next((token for token in prompt if not 0 <= token < model.vocab_size), None)
    if bad is not None:
        raise InvalidRequest(
            f"prompt_token_ids has {bad}, allowed are 0 to {model.vocab_size - 1}", param="prompt_token_ids"
        )
    if model.mask_token_id in prompt:
        raise InvalidRequest(
            f"prompt_token_ids has the mask token {model.mask_token_id}, which prompts must not contain",
            param="prompt_token_ids",
        )
