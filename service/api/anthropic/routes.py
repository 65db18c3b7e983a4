"""POST /v1/messages and POST /v1/messages/count_tokens: each body is parsed to one `ReplicaRequest`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request, Response

from service.api import fields
from service.api.anthropic import protocol
from service.api.anthropic.builder import MessageBuilder
from service.api.chats import Chat, chat_request, tool_result
from service.api.content import check_last_turn
from service.api.driver import IngressServices, JsonAnswer, locked, parsed, respond
from service.api.errors import AnthropicErrorAnswer
from service.api.fields import BodyFields
from service.api.openapi import API_ERRORS, STORY, errors, model_docs, route_docs
from service.api.pairs import with_paired_blocks
from service.api.parse import OutputParams, RequestContext, parse_body, with_form
from service.api.protocol import Json, JsonSchemaFormat, ResponseFormat
from service.api.tool_fields import with_tools_served
from service.errors import InvalidRequest
from service.messages.replica_status import ModelCard
from service.messages.wire import ReplicaRequest
from service.text.tools import Tool, ToolUse, assistant_message

_STREAM: Final = (
    "Anthropic's object, with `stats`. With `stream`, Anthropic's server-sent events, from `message_start` to "
    "`message_stop`. After a time-out stop_reason is `max_tokens`, and finish_reason `timeout` in `stats`."
)
_CHAT: Final = {"model": "demo", "messages": [STORY]}
_OF_ROLE: Final = {"thinking": "assistant", "tool_use": "assistant", "tool_result": "user"}

_HINTS = frozenset(
    {
        "betas",
        "cache_control",
        "context_management",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
    }
)

#: client fields that need a state or a server of Anthropic
_REFUSED: Final = {
    **fields.RELIED,
    "container": "",
    "max_new_tokens": "max_tokens",
    "mcp_servers": "",
    "n_predict": "max_tokens",
    "stop": "stop_sequences",
}

FIELDS = BodyFields({**fields.NEUTRAL, "mcp_servers": ([],)}, _REFUSED, _HINTS)

_MessagesBody = TypeVar("_MessagesBody", bound=protocol.PromptRequest)


def anthropic_router(upstream: IngressServices) -> APIRouter:
    """The routes, to be mounted at the root."""
    router = APIRouter(prefix="/v1", route_class=locked(upstream.authorize))
    failed = errors(*API_ERRORS, model=AnthropicErrorAnswer)
    answered = route_docs("Messages as Anthropic's client asks for them", protocol.MessageAnswer, failed, _STREAM)
    counted = route_docs("The number of tokens of a prompt", protocol.TokenCount, failed)

    @router.post("/messages", **answered, **model_docs(protocol.MessagesRequest, {**_CHAT, "max_tokens": 64}))
    async def messages(request: Request) -> Response:
        return _with_id(await respond(parse_messages, upstream, request), request)

    @router.post("/messages/count_tokens", **counted, **model_docs(protocol.PromptRequest, _CHAT))
    async def count_tokens(request: Request) -> Response:
        replica_request, context = await parsed(parse_count, upstream, request)
        charge = await upstream.admit(request, [replica_request])
        encoded = await upstream.pipeline.encode(replica_request, charge)
        tokens: protocol.TokenCount = {"input_tokens": len(encoded.token_ids)}
        return _with_id(JsonAnswer(tokens, headers=context.ignored.headers), request)

    return router


def _with_id(response: Response, request: Request) -> Response:
    response.headers["request-id"] = request.scope["request_id"]
    return response


def parse_messages(body: Mapping[str, Any], context: RequestContext) -> MessageBuilder:
    """Parses a body of POST /v1/messages. Raises InvalidRequest or UnknownModel with the reason."""
    request = _with_form(_parse(body, protocol.MessagesRequest, context))
    output = OutputParams(request.max_tokens, stream=request.stream)
    replica_request, answer_format = chat_request(request, _chat(request, context.card), context, output)
    return MessageBuilder(replica_request, context.card.name, request, answer_format)


def parse_count(body: Mapping[str, Any], context: RequestContext) -> ReplicaRequest:
    """The request whose prompt is to be counted. Raises as above."""
    request = _parse(body, protocol.PromptRequest, context)
    output = OutputParams(1, shorten=False)
    return chat_request(request, _chat(request, context.card), context, output)[0]


def _parse(body: Mapping[str, Any], schema: type[_MessagesBody], context: RequestContext) -> _MessagesBody:
    check_last_turn(body.get("messages"), "messages")
    body = with_tools_served(body, ("custom",), ("input_schema",), context.ignored)
    if isinstance(messages := body.get("messages"), list):
        body = {**body, "messages": with_paired_blocks(messages)}
    return parse_body(body, schema, FIELDS, context)


def _chat(request: protocol.PromptRequest, card: ModelCard) -> Chat:
    messages = for_template(request.system, request.messages)
    return Chat(messages, _tool_use(request), _think(request.thinking, card))


def _with_form(request: protocol.MessagesRequest) -> protocol.MessagesRequest:
    form = (request.output_config and request.output_config.format) or request.output_format
    if form is None:
        return request
    schema = JsonSchemaFormat(schema=form.schema_)
    return with_form(request, ResponseFormat(type="json_schema", json_schema=schema), "output_config.format")


def _tool_use(request: protocol.PromptRequest) -> ToolUse | None:
    """The tools that the answer may call. None without tools. InvalidRequest if the fields do not fit each other."""
    choice = request.tool_choice
    tools = tuple(
        Tool(tool.name, tool.description, tool.input_schema, bool(tool.strict), f"tools.{index}.input_schema")
        for index, tool in enumerate(request.tools)
    )
    if isinstance(choice, protocol.NamedToolChoice):
        return ToolUse(tools, "required", (choice.name,), parallel=False)
    mode = "required" if choice.type == "any" else choice.type
    parallel = not choice.disable_parallel_tool_use
    return ToolUse(tools, mode, parallel=parallel) if tools or mode == "required" else None


def _think(thinking: protocol.ThinkingParam | None, card: ModelCard) -> bool | None:
    """Whether to think; None leaves it to the chat template.

    A request without the field wants no thinking. A checkpoint that does not think answers without.
    """
    if card.thinking is None:
        return None
    if thinking is None:
        return False if card.thinking.switch else None
    return thinking.type != "disabled"


def for_template(system: str, messages: Sequence[protocol.MessageParam]) -> tuple[dict[str, Any], ...]:
    """The messages as chat templates take them. The last message must not be the assistant's.

    InvalidRequest if it is, if a block is not of its message's role, or if a result has no call.
    """
    if messages[-1].role == "assistant":
        raise InvalidRequest(
            "the last message is the assistant's; an answer cannot be begun for this model, end with a user's message",
            param=f"messages.{len(messages) - 1}.role",
        )
    made = [{"role": "system", "content": system}] if system else []
    called: dict[str, str] = {}
    for index, message in enumerate(messages):
        made.extend(_for_template(message, f"messages.{index}.content", called))
    return tuple(made)


def _for_template(message: protocol.MessageParam, param: str, called: dict[str, str]) -> Iterator[dict[str, Any]]:
    """One message, and before it the results of tools. `called`: id -> name of earlier calls; its own are added."""
    texts, thoughts, calls, has_results = list[str](), list[str](), list[tuple[str, str, Json]](), False
    for index, block in enumerate(message.content):
        role = _OF_ROLE.get(block.type, message.role)
        if role != message.role:
            raise InvalidRequest(
                f"{param}.{index} is a block {block.type} of the role {message.role}, allowed is {role}",
                param=f"{param}.{index}",
            )
        match block:
            case protocol.TextBlock():
                texts.append(block.text)
            case protocol.ThinkingBlock():
                thoughts.append(block.thinking)
            case protocol.ToolUseBlock():
                called[block.id] = block.name
                calls.append((block.id, block.name, block.input))
            case protocol.ToolResultBlock():
                has_results = True
                yield tool_result(block.tool_use_id, called, block.content, f"{param}.{index}.tool_use_id")
    text = protocol.BETWEEN.join(texts)
    if message.role == "assistant":
        yield assistant_message(text, calls, protocol.BETWEEN.join(thoughts))
    elif text or not has_results:
        yield {"role": message.role, "content": text}
