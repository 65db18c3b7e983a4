# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = [
#     "litellm==1.110.2",
# ]
# ///
"""LiteLLM: `api_base` and a prefix such as `openai/`; its Router falls back where a prompt is too long."""

import litellm
from parts import DEMO, KEY, LONG, MESSAGES, MODEL, STORY, fails, part, run

litellm.suppress_debug_info = True
OPTIONS = {"messages": MESSAGES, "api_key": KEY}
OPENAI = {"model": f"openai/{MODEL}", "api_base": f"{DEMO}v1", **OPTIONS}


@part
def chat():
    assert "6" in litellm.completion(**OPENAI).choices[0].message.content


@part
def stream():
    pieces = list(litellm.completion(**OPENAI, stream=True, stream_options={"include_usage": True}))
    assert "6" in "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)


@part
def sampling():
    """What Qwen3's users set."""
    assert litellm.completion(**OPENAI, presence_penalty=0.5, temperature=0.7, extra_body={"min_p": 0, "top_k": 20})


@part
def effort():
    assert litellm.completion(**OPENAI, reasoning_effort="low", allowed_openai_params=["reasoning_effort"])


@part
def anthropic():
    request = {**OPENAI, "model": f"anthropic/{MODEL}", "api_base": DEMO.rstrip("/"), "max_tokens": 200}
    assert "6" in litellm.completion(**request).choices[0].message.content


@part
def responses():
    answer = litellm.responses(model=f"openai/{MODEL}", api_base=f"{DEMO}v1", api_key=KEY, input=STORY)
    assert answer.status == "completed"


@part
def more_tokens_than_left():
    assert litellm.completion(**OPENAI, max_tokens=5000).choices[0].message.content


@part
def a_prompt_that_is_too_long():
    long = {**OPENAI, "messages": [{"role": "user", "content": LONG}]}
    fails(lambda: litellm.completion(**long), "ContextWindowExceededError")


@part
def a_refusal_with_drop_params():
    litellm.drop_params = True
    wrong = {**OPENAI, "messages": [{"role": "user", "content": LONG}]}
    fails(lambda: litellm.completion(**wrong), "ContextWindowExceededError", "BadRequestError")


@part
def router_falls_back():
    small = {
        "model_name": "small",
        "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{DEMO}v1", "api_key": KEY},
    }
    large = {"model_name": "large", "litellm_params": {**small["litellm_params"], "mock_response": "from the other"}}
    router = litellm.Router([small, large], context_window_fallbacks=[{"small": ["large"]}], num_retries=0)
    answer = router.completion("small", messages=[{"role": "user", "content": LONG}])
    assert answer.choices[0].message.content == "from the other"


run()
