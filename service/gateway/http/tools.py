"""Tools and thinking of a chat, for the routes of every API: what the prompt shows, what constrains the answer.

A route makes a `ToolUse` of its own fields and asks `with_tools` for the work and for the reading of its answers.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from service.constraints.constraint import CallTexts, Constraint, Lead, ToolCallForm
from service.errors import InvalidRequest
from service.text.tools import TOOL_FORMATS, AnswerFormat, ToolUse
from service.text.tools.formats import BEGIN, END, GAP
from service.wire import ModelCard, Work

#: an answer's thinking, as `AnswerFormat` says it
_Thinking = Literal["no", "may", "begun"]


def with_tools(
    work: Work, card: ModelCard, use: ToolUse | None = None, *, think: bool | None = None, think_param: str = "thinking"
) -> tuple[Work, AnswerFormat]:
    """The work of a chat with its tools and thinking, and how its answers are read.

    A constraint of the work holds after the thinking, and where no tool is called. `think`: whether to think; None
    leaves it to the chat template. `think_param`: the request's field of it, for errors. InvalidRequest if the
    checkpoint cannot be given tools, cannot think, or cannot do without.
    """
    thinking = _thinking(card, think, think_param)
    constraint, called = work.constraint, None
    if use is not None and use.callable:
        called = _format(card)
        constraint = _calls(use, called, work.constraint)
        if work.ignore_eos:
            raise InvalidRequest(
                "ignore_eos is true, which tools do not allow: calls of tools end the answer", param="ignore_eos"
            )
    if constraint is not None and thinking != "no":
        constraint = replace(constraint, lead=Lead(BEGIN, END, GAP, begun=thinking == "begun"))
    shown = use.tools if use is not None and called is not None else ()
    if card.thinking is None or not card.thinking.switch:
        think = None
    tools = tuple(tool.definition for tool in shown)
    return replace(work, constraint=constraint, tools=tools, think=think), AnswerFormat(called, thinking)


def _thinking(card: ModelCard, think: bool | None, param: str) -> _Thinking:
    if card.thinking is None:
        if think:
            raise InvalidRequest("this checkpoint does not think, as far as its chat template says", param=param)
        return "no"
    if think is False and not card.thinking.switch:
        raise InvalidRequest("the chat template of this checkpoint cannot turn thinking off", param=param)
    if think is False:
        return "no"
    return "begun" if card.thinking.begun else "may"


def _format(card: ModelCard) -> str:
    if card.tool_format is None:
        raise InvalidRequest(f"tools are given, and {card.tools_problem}", param="tools")
    return card.tool_format


def _calls(use: ToolUse, name: str, content: Constraint | None) -> Constraint:
    form = TOOL_FORMATS[name]
    forms = [ToolCallForm(tool.name, form.head(tool.name), tool.schema, form.tail) for tool in use.callable]
    return Constraint.calls(
        CallTexts(form.opening, form.between, form.closing),
        forms,
        required=use.choice == "required",
        parallel=use.parallel,
        content=content,
    )
