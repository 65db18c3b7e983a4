"""Parses OpenAI's bodies: one `ReplicaRequest` per choice, and the form of the answer."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from service.api import fields
from service.api.chats import Chat, chat_request
from service.api.content import check_last_turn
from service.api.fields import BodyFields
from service.api.openai import protocol
from service.api.openai.builder import ChatBuilder, CompletionBuilder
from service.api.openai.chat import for_template
from service.api.parse import (
    OutputParams,
    Prompt,
    RequestContext,
    constraint_of,
    further_request,
    parse_body,
    to_replica_request,
)
from service.api.protocol import MAX_ANSWERS, Json
from service.api.tool_fields import with_tools_served
from service.errors import InvalidRequest
from service.text.tools import Tool, ToolUse

#: the default of completions at OpenAI, vLLM and SGLang: a text to be continued has no end of its own
_COMPLETION_TOKENS = 16

#: fields of OpenAI, vLLM and SGLang -> their values that ask for nothing
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    **fields.NEUTRAL,
    "add_generation_prompt": (True,),
    "add_special_tokens": (True, False),
    "background": (False,),
    "continue_final_message": (False,),
    "detokenize": (True,),
    "early_stopping": (False,),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "prompt_logprobs": (0,),
    "return_tokens_as_token_ids": (False,),
    "separate_reasoning": (True,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "store": (False,),
    "stream_reasoning": (True, False),
    "truncation": ("disabled",),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}

#: field that a client relies on -> the field that serves the purpose, or an empty text
REFUSED: Final[Mapping[str, str]] = {
    **fields.RELIED,
    "add_generation_prompt": "",
    "audio": "",
    "continue_final_message": "",
    "include_stop_str_in_output": "",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "modalities": "",
    "prompt_logprobs": "",
    "stop_regex": "stop",
    "stop_sequences": "stop",
}

#: the type of tools that are served
FUNCTION: Final = ("function",)

#: labels, and requests for fields that every answer has
HINTS: Final = frozenset(
    {
        "client_metadata",
        "metadata",
        "prompt_cache_options",
        "prompt_cache_retention",
        "return_token_ids",
        "safety_identifier",
        "user",
    }
)

COMPLETION_FIELDS = BodyFields(
    {**NEUTRAL, "best_of": (1,), "suffix": ("",), "tool_choice": ("none", "auto"), "tools": ([],)},
    {**REFUSED, "messages": "prompt", "suffix": "", "tools": ""},
    HINTS,
)
CHAT_FIELDS = BodyFields(
    {**NEUTRAL, "echo": (False,), "function_call": ("none", "auto"), "functions": ([],), "verbosity": ("medium",)},
    {**REFUSED, "echo": "", "function_call": "tool_choice", "functions": "tools"},
    HINTS,
)

_Request = TypeVar("_Request", bound=protocol.OpenAiRequest)


def parse_completion(body: Mapping[str, Any], context: RequestContext) -> CompletionBuilder:
    """Parses a body of POST /v1/completions. Raises InvalidRequest or UnknownModel with the reason."""
    request = _parse(_without_best_of(body), protocol.CompletionRequest, COMPLETION_FIELDS, context)
    _check_completion(request)
    prompts = [prompt for prompt in request.prompt for _ in range(request.n)]
    prompt = Prompt(**_prompt(prompts[0]), constraint=constraint_of(request))
    limit = request.max_tokens or _COMPLETION_TOKENS
    output = OutputParams(limit, stream=request.stream, logprobs=request.alternatives)
    replica_request = to_replica_request(request, context, prompt, output)
    further = [further_request(replica_request, index, **_prompt(prompts[index])) for index in range(1, len(prompts))]
    return CompletionBuilder([replica_request, *further], context.card.name, request)


def parse_chat(body: Mapping[str, Any], context: RequestContext) -> ChatBuilder:
    """Parses a body of POST /v1/chat/completions. Raises InvalidRequest or UnknownModel with the reason."""
    check_last_turn(body.get("messages"), "messages")
    _check_prefix(body.get("messages"))
    body = with_tools_served(body, FUNCTION, ("function", "parameters"), context.ignored)
    request = _parse(body, protocol.ChatRequest, CHAT_FIELDS, context)
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise InvalidRequest(
            f"max_tokens is {request.max_tokens} and max_completion_tokens {request.max_completion_tokens}; "
            "they mean the same, give one of them",
            param="max_tokens",
        )
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest(f"top_logprobs is {request.top_logprobs}, which needs logprobs true", param="top_logprobs")
    thinks = think(request.reasoning_effort, request.chat_template_kwargs)
    chat = Chat(for_template(request.messages), _tool_use(request), *thinks)
    output = OutputParams(limits.pop() if limits else None, stream=request.stream, logprobs=request.alternatives)
    replica_request, answer_format = chat_request(request, chat, context, output)
    further = [further_request(replica_request, index) for index in range(1, request.n)]
    return ChatBuilder([replica_request, *further], context.card.name, request, answer_format)


def _check_prefix(messages: Any) -> None:
    """InvalidRequest if the last message is the beginning of an answer, as Mistral's and DeepSeek's clients mark it."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    if isinstance(last, Mapping) and last.get("role") == "assistant" and last.get("prefix") is True:
        raise InvalidRequest(
            "the last message has prefix true, and an answer cannot be begun for this model; end with a user's message",
            param=f"messages.{len(messages) - 1}.prefix",
        )


def _parse(body: Mapping[str, Any], schema: type[_Request], served: BodyFields, context: RequestContext) -> _Request:
    request = parse_body(body, schema, served, context)
    if request.stream_options and not request.stream:
        raise InvalidRequest("stream_options are given, which need stream true", param="stream_options")
    return request


def _without_best_of(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body without `best_of` if it equals `n`, since it then changes nothing."""
    same = body.get("best_of") is not None and body["best_of"] == body.get("n")
    return {name: value for name, value in body.items() if name != "best_of"} if same else body


def _check_completion(request: protocol.CompletionRequest) -> None:
    count = request.n * len(request.prompt)
    if count > MAX_ANSWERS:
        raise InvalidRequest(
            f"{len(request.prompt)} prompts with n {request.n} are {count} answers, allowed are {MAX_ANSWERS}",
            param="n",
        )
    if request.echo and not all(isinstance(prompt, str) for prompt in request.prompt):
        raise InvalidRequest("echo is true, which needs prompts that are texts", param="echo")
    if request.echo and request.logprobs is not None:
        raise InvalidRequest("echo is true with logprobs; a prompt's tokens have no log-probabilities", param="echo")


def _prompt(prompt: str | list[int]) -> Json:
    return {"text": prompt, "token_ids": None} if isinstance(prompt, str) else {"text": None, "token_ids": (*prompt,)}


def _tool_use(request: protocol.ChatRequest) -> ToolUse | None:
    """The tools that the answer may call. None without tools. InvalidRequest if the fields do not fit each other."""
    functions = enumerate(spec.function for spec in request.tools)
    tools = tuple(
        Tool(item.name, item.description, item.parameters, bool(item.strict), f"tools.{index}.function.parameters")
        for index, item in functions
    )
    choice, parallel = request.tool_choice, request.parallel_tool_calls
    if isinstance(choice, protocol.NamedTool):
        return ToolUse(tools, "required", (choice.function.name,), parallel=False)
    if isinstance(choice, protocol.AllowedChoice):
        names = tuple(tool.function.name for tool in choice.allowed_tools.tools)
        return ToolUse(tools, choice.allowed_tools.mode, names, parallel)
    return ToolUse(tools, choice, (), parallel) if tools or choice == "required" else None


def think(effort: protocol.Effort | None, options: protocol.TemplateOptions | None) -> tuple[bool | None, str]:
    """Whether to think, None leaves it to the chat template; and the field that says so."""
    thinks = None if effort is None else effort != "none"
    enabled = options.enable_thinking if options else None
    if thinks is None or enabled is None:
        return (enabled, "chat_template_kwargs") if thinks is None else (thinks, "reasoning_effort")
    if thinks != enabled:
        raise InvalidRequest(
            f"reasoning_effort is {effort!r} and chat_template_kwargs.enable_thinking {str(enabled).lower()}; "
            "give one of them",
            param="chat_template_kwargs",
        )
    return thinks, "reasoning_effort"
