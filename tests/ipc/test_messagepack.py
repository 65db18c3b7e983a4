"""Messages of links: every one comes back equal, and whatever else comes is refused."""

import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from typing_extensions import is_typeddict

from service import errors
from service.decode.mode import ScoreMode
from service.decode.modes import MODES
from service.engine.request import MAX_SEED, SamplingParams, Sharing, Stats
from service.errors import InvalidRequest, MrpServeError
from service.ipc import data
from service.ipc.connections import Malformed, Unsendable
from service.ipc.data import Arrival
from service.ipc.messagepack import MessagePack
from service.link.protocol import AT_INGRESS, AT_REPLICA, CallEnd, CancelCall, DrainNotice, ReplicaCall, ReplicaItem
from service.messages.wire import Answer, Chunk, Ending, Failure, ReplicaRequest
from tests.clock import Clock

ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MrpServeError)]
#: MessagePack has no others
INTEGERS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    Any: JSON,
    int: INTEGERS,
    float: FLOATS,
    str: st.text(max_size=10),
    bytes: st.binary(max_size=10),
    bool: st.booleans(),
    type(None): st.none(),
    Arrival: st.builds(Arrival, st.integers(-1000, 1000).map(float)),
    MrpServeError: st.builds(
        lambda kind, message, param, retry_after: kind(message, param=param, retry_after=retry_after),
        st.sampled_from(ERRORS),
        st.text(),
        st.none() | st.text(),
        st.none() | FLOATS,
    ),
    Sharing: st.builds(Sharing, st.text(max_size=10), FLOATS, st.integers(0, 9), st.text(max_size=10)),
    SamplingParams: st.builds(
        SamplingParams, st.floats(0, 100), st.floats(0.001, 1), st.integers(0, 2**40), st.integers(0, MAX_SEED)
    ),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    return values(get_args(kind)[0]) if get_origin(kind) is Annotated else _values(kind)


@lru_cache
def _values(kind: Any) -> st.SearchStrategy[Any]:
    if kind in PLAIN:
        return PLAIN[kind]
    arguments, origin = get_args(kind), get_origin(kind)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is not ...:
        return st.tuples(*map(values, arguments))
    if origin in {tuple, list, frozenset}:
        return st.lists(st.deferred(lambda: values(arguments[0])), max_size=3).map(origin)
    if origin is Mapping:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if arguments:
        return st.one_of(*map(values, arguments))
    fields = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return st.fixed_dictionaries({name: values(of) for name, of in fields.items()})
    if issubclass(kind, tuple):  # a named one
        return st.builds(kind, *map(values, fields.values()))
    assert issubclass(kind, Struct), kind
    return st.builds(kind, **{name: st.deferred(lambda of=fields[name]: values(of)) for name in kind.__struct_fields__})


@pytest.fixture(autouse=True, scope="module")
def _stopped_clock() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data.time, "monotonic", lambda: 1000.0)
        yield


def again(codec: MessagePack, *messages: Any) -> list[Any]:
    return codec.decode(codec.content([codec.encode(message) for message in messages]))


def fields_of(error: MrpServeError) -> tuple[Any, ...]:
    return type(error), error.message, error.param, error.retry_after


@pytest.mark.parametrize(
    ("codec", "kinds"), [(AT_REPLICA, ReplicaCall | CancelCall), (AT_INGRESS, ReplicaItem | CallEnd | DrainNotice)]
)
def test_every_message_comes_back_equal(codec: MessagePack, kinds: Any) -> None:
    @settings(max_examples=50)
    @given(st.lists(values(kinds), min_size=1, max_size=20))
    def check(messages: list[Any]) -> None:
        for sent, came in zip(messages, again(codec, *messages), strict=True):
            if isinstance(sent, ReplicaItem) and isinstance(sent.item, Failure):
                assert fields_of(came.item.error) == fields_of(sent.item.error)
            else:
                assert came == sent

    check()


def test_every_mode_has_a_name_of_its_own() -> None:
    assert {name: kind.__struct_config__.tag for name, kind in MODES.items()} == {name: name for name in MODES}
    assert ScoreMode.__struct_config__.tag == ScoreMode.name
    assert set(get_args(get_type_hints(ReplicaRequest)["mode"])) == {*MODES.values(), ScoreMode}


@pytest.mark.parametrize("codec", [AT_REPLICA, AT_INGRESS])
def test_other_bytes_are_refused(codec: MessagePack) -> None:
    valid = st.one_of(
        values(ReplicaCall).map(lambda call: AT_REPLICA.content([AT_REPLICA.encode(call)])),
        values(ReplicaItem).map(lambda item: AT_INGRESS.content([AT_INGRESS.encode(item)])),
    )
    spoiled = st.tuples(valid, st.integers(0), st.integers(0), st.binary(max_size=5)).map(_spoiled)

    @settings(max_examples=50)
    @given(st.binary(max_size=50) | spoiled)
    def check(content: bytes) -> None:
        with suppress(Malformed):
            assert all(
                type(message) in {ReplicaCall, CancelCall, ReplicaItem, CallEnd, DrainNotice}
                for message in codec.decode(content)
            )

    check()


def _spoiled(parts: tuple[bytes, int, int, bytes]) -> bytes:
    content, first, second, inserted = parts
    start, end = sorted((first % (len(content) + 1), second % (len(content) + 1)))
    return content[:start] + inserted + content[end:]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x91\x92\x09\x00",  # no such message
        b"\x91\x92\x04\x00",  # an End, which no ingress sends
        b"\xdd\xff\xff\xff\xff",  # more than come
        b"\x91" * 100_000,
        pickle.dumps([CancelCall(0)]),
    ],
)
def test_bytes_that_are_no_message_are_refused(content: bytes) -> None:
    with pytest.raises(Malformed, match="no message"):
        AT_REPLICA.decode(content)


def test_an_error_of_another_module_crosses_as_its_base() -> None:
    class Special(InvalidRequest):
        pass

    [item] = again(AT_INGRESS, ReplicaItem(0, Failure(Special("half \ud800", param="a", retry_after=2.0)), 0))
    assert fields_of(item.item.error) == (InvalidRequest, "half \\ud800", "a", 2.0)


@pytest.mark.parametrize("name", ["SystemExit", "MrpServeErrors"])
def test_an_unknown_error_is_refused(name: str) -> None:
    encoded = AT_INGRESS.encode(ReplicaItem(0, Failure(InvalidRequest("x")), 0))
    wrong = encoded.replace(b"\xaeInvalidRequest", bytes([0xA0 | len(name)]) + name.encode())
    assert wrong != encoded
    with pytest.raises(Malformed):
        AT_INGRESS.decode(AT_INGRESS.content([wrong]))


@pytest.mark.parametrize(
    "value", [2**64, "\ud800", object(), {1: {object()}}], ids=["long", "half", "object", "within"]
)
def test_a_value_without_an_encoding_is_refused(value: Any) -> None:
    step: Any = {"kind": value}
    with pytest.raises(Unsendable):
        AT_INGRESS.encode(ReplicaItem(0, Chunk(0, "", (), Stats(), (step,)), 0))


@pytest.mark.parametrize("receiver_s", [0.0, 5_000_000.0], ids=["behind", "ahead"])
def test_a_wait_continues_at_a_receiver_with_another_clock(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, receiver_s: float
) -> None:
    monkeypatch.setattr(data.time, "monotonic", clock)
    codec = MessagePack(Arrival)
    arrival = Arrival.now()
    clock.now += 7.0
    sent = codec.content([codec.encode(arrival)])
    clock.now = receiver_s
    [received] = codec.decode(sent)
    assert received.waited_s() == 7.0
    clock.now += 2.0
    assert received.waited_s() == 9.0


def test_prompts_and_answers_are_in_no_repr() -> None:
    answer = Answer("a secret", (4711,), Ending("stop", 1, 1, Stats(), stop_text="a secret"))
    text = repr(ReplicaItem(0, answer, 0))
    assert "secret" not in text
    assert "4711" not in text
    assert "finish_reason='stop'" in text
