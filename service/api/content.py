"""The contents of messages, in any API: texts are read, images and files leave a placeholder, other parts are skipped.

A history with an image thus stays answerable. The user's own last message may have none: the user wants an answer about
the image, and the model cannot see it. Arguments of earlier calls are read as far as they are complete.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator
from pydantic_core import PydanticCustomError

from service.constraints.json_text import read_json_part
from service.errors import InvalidRequest

#: types of parts with a text
_TEXTS: Final = frozenset({"text", "input_text", "output_text", "refusal"})
#: type of a part that a text model cannot read -> its name in the placeholder
_UNREADABLE: Final = {
    "audio_url": "audio",
    "computer_screenshot": "image",
    "document": "document",
    "file": "file",
    "image": "image",
    "image_file": "image",
    "image_url": "image",
    "input_audio": "audio",
    "input_file": "file",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
}
#: types of parts with a content, such as a page that was found, or the summary of what a client left out
_WITH_CONTENTS: Final = frozenset({"compaction", "search_result"})
#: the most messages of a chat with their parts and calls. They are read one by one, so a body of 1 MB could take long
MAX_PARTS: Final = 8192
#: the most fields of a body, without those in its fields
MAX_FIELDS: Final = 1024
#: fields of a body with a list of objects, and fields of such an object with further ones
_LISTS: Final = ("messages", "input", "system", "tools", "items")
_NESTED: Final = ("content", "output", "tool_calls", "messages")


def check_parts(body: Mapping[str, Any]) -> None:
    """InvalidRequest for a body with too many fields, or messages and parts. Looks at no more than are allowed."""
    if len(body) > MAX_FIELDS:
        raise InvalidRequest(f"the body has {len(body)} fields, allowed are {MAX_FIELDS}")
    for name in _LISTS:
        if isinstance(items := body.get(name), list) and _count(items, MAX_PARTS) > MAX_PARTS:
            raise InvalidRequest(f"{name} has more than {MAX_PARTS} items with their parts", param=name)


def _count(items: list[Any], most: int) -> int:
    """The number of items and of their parts. It ends when they are more than `most`."""
    count = len(items)
    for item in items:
        if count > most:
            break
        if isinstance(item, dict):
            count += sum(_count(item[name], most - count) for name in _NESTED if isinstance(item.get(name), list))
    return count


def part_text(part: object) -> str | None:
    """The text of a part, or its placeholder. Empty for a part that is skipped, None for a value that is no part."""
    if not isinstance(part, Mapping) or not isinstance(kind := part.get("type"), str):
        return None
    if kind in _TEXTS:
        text = part.get("refusal" if kind == "refusal" else "text")
        return text if isinstance(text, str) else None
    if kind in _WITH_CONTENTS:
        inner = joined(part.get("content") or "", "\n")
        texts = (part.get("title"), part.get("source"), inner)
        return "\n".join(text for text in texts if isinstance(text, str) and text)
    return f"[{_UNREADABLE[kind]} not shown: this model reads text only]" if kind in _UNREADABLE else ""


def joined(content: object, between: str = "") -> object:
    """The text of a content. Its parts are joined: texts and placeholders."""
    if not isinstance(content, list):
        return content
    texts = [part_text(part) for part in content]
    if None in texts:
        message = f"a text or a list of parts is expected, text parts with a text; part {texts.index(None)} is none"
        raise PydanticCustomError("content", message)
    return between.join(text for text in texts if text)


class TextPart(BaseModel):
    """A text part of a message's content. Other fields, such as `annotations`, are ignored."""

    type: Literal["text", "input_text", "output_text"]
    text: str


Text = Annotated[str, BeforeValidator(joined, json_schema_input_type=str | list[TextPart])]


def check_last_turn(messages: object, param: str) -> None:
    """InvalidRequest if the last message is the user's and has an image or a file. `param`: the field of messages."""
    last: Any = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, Mapping) and last.get("role") == "user" else None
    for index, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(kind, str) and kind in _UNREADABLE:
            location = f"{param}.{len(messages) - 1}.content.{index}"  # type: ignore[arg-type]
            raise InvalidRequest(
                f"{location} is of the type {kind}, and this model reads text only; send text parts", param=location
            )


def past_arguments(value: object) -> dict[str, Any]:
    """The arguments of an earlier call: an object, or its JSON text. A text that was cut gives its complete part.

    Anything else gives no arguments: a client cannot repair the history that it has.
    """
    if isinstance(value, str):
        try:
            value = read_json_part(value)
        except ValueError:  # empty, cut within an escape, or no JSON
            return {}
    return value if isinstance(value, dict) else {}
