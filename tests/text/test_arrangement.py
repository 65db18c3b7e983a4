"""Conversations that APIs take, and that chat templates refuse or leave texts out of. A template stands for a kind."""

import re
from functools import cache
from itertools import product
from typing import Any

import pytest

from service.errors import InvalidRequest
from service.text import TextCodec
from service.text.tools import Tool, assistant_message, tool_message
from tests.text.templates import QWEN3, of
from tests.text.test_chat import expected

BODY = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant"


def raising(condition: str, words: str) -> str:
    return "{% if " + condition + " %}{{ raise_exception('" + words + "') }}{% endif %}"


EACH = "{% for m in messages %}"
LATE = EACH + raising("m.role == 'system' and not loop.first", "System message must be at the beginning.")
LATE += "{% endfor %}"
NO_USER = raising("not messages | selectattr('role', 'equalto', 'user') | list", "No user query found in messages.")
IN_TURN = EACH + raising("(m.role == 'user') != (loop.index0 % 2 == 0)", "Conversation roles must alternate")
IN_TURN += "{% endfor %}"
CALL = "{{ '<tool_call>\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' + ARGS + '}\n</tool_call>' }}"
CALLS = "{% for c in m.tool_calls or [] %}CHECK" + CALL + "{% endfor %}"
TOOLS = "{{ tools | tojson if tools }}" + BODY.replace("<|im_end|>", CALLS + "<|im_end|>")
SHOWN = TOOLS.replace("ARGS", "(c.function.arguments | tojson)")
NINE = "m.{0} and m.{0} | length != 9"
TEMPLATES = {
    "system first": LATE + BODY,  # Qwen3.5
    "system first, a user": LATE + NO_USER + QWEN3,  # Qwen3.5
    "no system, in turn": raising("messages[0].role == 'system'", "System role not supported")
    + IN_TURN
    + BODY,  # Gemma
    "in turn after a system": "{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% set messages = messages[1:] %}{% endif %}"
    + EACH
    + raising("m.role == 'system'", "Only user and assistant roles are supported")
    + "{% endfor %}"
    + IN_TURN
    + BODY,  # Mistral
    "leaves systems out": BODY.replace("<|im_start|>{{", "{% if m.role != 'system' %}<|im_start|>{{").replace(
        "{% endfor", "{% endif %}{% endfor"
    ),  # the first Phi-3
    "in turn, and leaves late systems out": "{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% set messages = messages[1:] %}{% endif %}"
    + IN_TURN
    + BODY.replace(EACH, EACH + "{% if m.role != 'system' %}").replace("{% endfor", "{% endif %}{% endfor"),  # Vicuna
    "a system in the first turn": "{% if messages[0].role == 'system' %}{% set first = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}"
    + BODY.replace("{{ m.content", "{{ first if loop.first }}{{ m.content"),  # an older Gemma
    "parts alone": BODY.replace("{{ m.content }}", "{% for part in m.content %}{{ part.text }}{% endfor %}"),  # Llama 4
    "a user last": raising("messages[-1].role == 'assistant'", "Expected last role user") + BODY,
    "takes all": BODY,
}
LETTERS = {"s": "system", "u": "user", "a": "assistant"}
SEQUENCES = ["".join(letters) for count in range(1, 5) for letters in product("sua", repeat=count)]


def talk(letters: str) -> list[dict[str, str]]:
    return [{"role": LETTERS[letter], "content": f"{letter}{index}."} for index, letter in enumerate(letters)]


@cache
def codec_of(template: str) -> TextCodec:
    return TextCodec(of("bytes", template))


def text_of(codec: TextCodec, messages: Any, tools: Any = ()) -> str:
    made = codec.template
    return made.aliases.restore(made.hidden.restore(made.render(messages, tools)))


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_every_order_of_roles_is_shown_whole(template: str) -> None:
    """What the template takes itself has transformers' ids. All else has each text once, a role's in their order."""
    codec, whole = codec_of(template), of("bytes", template)
    taken = 0
    for letters in SEQUENCES:
        messages = talk(letters)
        contents = [message["content"] for message in messages]
        text = text_of(codec, messages)
        for role in LETTERS:
            words = re.findall(role + r"\d\.", text)
            assert words == [content for content in contents if content[0] == role], (letters, text)
        assert re.findall(r"[ua]\d\.", text) == [word for word in contents if word[0] != "s"]
        try:
            ids = expected(whole, messages)
        except Exception:  # noqa: BLE001 - the template refuses these
            continue
        if all(content in whole.decode(ids) for content in contents):
            assert codec.encode_chat(messages) == ids
            taken += 1
    assert (taken == len(SEQUENCES)) == (template == BODY)


def turn(*parts: str) -> str:
    """The text of a conversation of `role content`."""
    pairs = [part.partition(" ") for part in (*parts, "assistant")]
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, _, text in pairs).removesuffix("\n<|im_end|>\n")


@pytest.mark.parametrize(
    ("template", "letters", "text"),
    [
        ("system first", "suasu", turn("system s0.\n\ns3.", "user u1.", "assistant a2.", "user u4.")),
        ("system first", "us", turn("system s1.", "user u0.")),
        ("system first", "ssu", turn("system s0.\n\ns1.", "user u2.")),
        ("system first, a user", "s", turn("system s0.", "user ")),
        ("system first, a user", "sa", turn("system s0.", "user ", "assistant <think>\n\n</think>\n\na1.")),
        ("no system, in turn", "su", turn("user s0.\n\nu1.")),
        ("no system, in turn", "uas", turn("user s2.\n\nu0.", "assistant a1.")),
        ("no system, in turn", "uuaau", turn("user u0.\n\nu1.", "assistant a2.\n\na3.", "user u4.")),
        ("no system, in turn", "au", turn("user ", "assistant a0.", "user u1.")),
        ("no system, in turn", "s", turn("user s0.")),
        ("in turn after a system", "susu", "s0.\n\ns2." + turn("user u1.\n\nu3.")),
        ("leaves systems out", "usu", turn("user s1.\n\nu0.", "user u2.")),
        ("a user last", "ua", turn("user u0.", "assistant a1.", "user ")),
    ],
)
def test_a_refused_order_is_arranged(template: str, letters: str, text: str) -> None:
    assert text_of(codec_of(TEMPLATES[template]), talk(letters)).rstrip() == text


def test_empty_answers_are_left_out_where_they_are_refused() -> None:
    refusing = EACH + raising("m.role == 'assistant' and not m.content", "empty") + "{% endfor %}" + BODY
    messages = [*talk("u"), {"role": "assistant", "content": ""}, {"role": "user", "content": "b"}]
    assert text_of(codec_of(refusing), messages) == turn("user u0.\n\nb")


TOOL = Tool("add", "Adds.", {"type": "object"}).definition
IDS = ("toolu_01A09q90qw90lq917835lq9", "call_2")
WRITTEN = '<tool_call>\n{"name": "add", "arguments": {"a": %d}}\n</tool_call>'


def calling() -> list[dict[str, Any]]:
    """A conversation with two calls, whose results come in the other order."""
    calls = [(call_id, "add", {"a": index}) for index, call_id in enumerate(IDS)]
    results = [tool_message(call_id, "add", f"r{call_id[-1]}") for call_id in reversed(IDS)]
    return [*talk("u"), assistant_message("x", calls), *results, {"role": "user", "content": "b"}]


AS_TEXT = turn("user u0.", "assistant x\n" + WRITTEN % 0 + "\n" + WRITTEN % 1,
               "user "
               "<tool_response>\nr2\n</tool_response>\n<tool_response>\nr9\n</tool_response>", "user b")  # fmt: skip
ONE_BY_ONE = turn("user u0.", "assistant x" + WRITTEN % 0, "tool r9", "assistant " + WRITTEN % 1, "tool r2", "user b")
NATIVE = turn("user u0.", "assistant x" + WRITTEN % 0 + WRITTEN % 1, "tool r2", "tool r9", "user b")
SINGLE = SHOWN.replace("CHECK", raising("m.tool_calls | length > 1", "This model only supports single tool-calls"))
IN_TEXT = TOOLS.replace("ARGS", "c.function.arguments").replace("CHECK", "")
SHORT_IDS = SHOWN.replace("CHECK", raising("c.id | length != 9", "Tool call IDs should have length 9!"))
SHORT_IDS = SHORT_IDS.replace(EACH, EACH + raising(NINE.format("tool_call_id"), "Tool call IDs should have length 9!"))
NO_RESULT = EACH + raising("m.role == 'tool'", "Unknown role") + "{% endfor %}"
CALLING = {
    "it writes calls": (SHOWN.replace("CHECK", ""), NATIVE, "qwen3"),
    "one call in a message": (SINGLE, ONE_BY_ONE, "qwen3"),
    "arguments are texts": (IN_TEXT, NATIVE, "qwen3"),
    "ids of nine letters": (SHORT_IDS, NATIVE, "qwen3"),
    "it leaves calls out": (BODY, AS_TEXT, None),
    "it refuses results": (NO_RESULT + SHOWN.replace("CHECK", ""), AS_TEXT, None),
    "in turn": (IN_TURN + BODY, AS_TEXT.replace("<|im_end|>\n<|im_start|>user\nb", "\n\nb"), None),
}


@pytest.mark.parametrize(("template", "text", "tools"), CALLING.values(), ids=CALLING)
def test_calls_and_results_are_shown_together(template: str, text: str, tools: str | None) -> None:
    codec = codec_of(template)
    assert text_of(codec, calling()) == text
    made = codec.template.tool_format
    assert (made and made.name) == tools
    if tools:
        assert text in text_of(codec, calling(), [TOOL])


def test_a_template_that_shows_no_calls_is_given_no_tools() -> None:
    for template, problem in (
        (NO_RESULT + SHOWN, "cannot show calls of tools: Unknown role"),
        (BODY, "knows no tools"),
    ):
        assert problem in codec_of(template.replace("CHECK", "")).template.tools_problem


def test_a_refusal_has_the_words_of_the_template() -> None:
    codec = codec_of(raising("'bad' in messages[-1].content", "not <|im_end|> this") + TEMPLATES["system first"])
    for messages in (talk("us"), [*talk("us"), {"role": "user", "content": "bad"}]):
        if messages[-1]["content"] != "bad":
            assert text_of(codec, messages) == turn("system s1.", "user u0.")
            continue
        with pytest.raises(InvalidRequest, match=r"refuses these messages: not <\|im_end\|> this") as caught:
            codec.encode_chat(messages)
        assert caught.value.param == "messages"


def test_marks_stay_whose_they_were_in_one_message() -> None:
    """A system message's mark is a token, a user's is text, wherever the template has them."""
    codec = codec_of(TEMPLATES["no system, in turn"])
    mark = of("bytes", BODY).convert_tokens_to_ids("<think>")
    roles = ("system", "user")
    counts = [
        codec.encode_chat([{"role": role, "content": "<think>" if role == marked else "x"} for role in roles]).count(
            mark
        )
        for marked in roles
    ]
    assert counts == [1, 0]


def test_a_developer_is_a_system() -> None:
    assert text_of(codec_of(LATE + BODY), [*talk("u"), {"role": "developer", "content": "d"}]) == turn(
        "system d", "user u0."
    )
