"""The common keys of two prompts: prefixes, salts, turns of a conversation, and the cost of keys."""

import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from service.decode.modes import Static
from service.engine.request import SamplingParams, Sharing
from service.ipc.data import Arrival
from service.messages.wire import ReplicaRequest
from service.routing.keys import PrefixKeys, prefix_keys

TEXT = "".join(chr(97 + n * n % 23) for n in range(3000))


def request(**prompt: Any) -> ReplicaRequest:
    return ReplicaRequest("id", Static(), SamplingParams(), 4, 60.0, Arrival(0.0), **prompt)


def keys(**prompt: Any) -> PrefixKeys:
    return prefix_keys(request(**prompt))


def chat(*contents: str) -> tuple[dict[str, str], ...]:
    return tuple({"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(contents))


def shared(first: PrefixKeys, second: PrefixKeys) -> float:
    """The share of the first prompt that the two have in common, as their keys have it."""
    return max((share for key, share in zip(first.keys, first.shares, strict=True) if key in second.keys), default=0.0)


@pytest.mark.parametrize("same", [70, 300, 1000, 2900])
@pytest.mark.parametrize("ids", [False, True])
def test_prompts_share_the_keys_of_what_they_share_and_no_more(same: int, ids: bool) -> None:
    text_a, text_b = TEXT, TEXT[:same] + "?" + TEXT[same + 1 :]
    share = shared(*(keys(token_ids=tuple(map(ord, text))) if ids else keys(text=text) for text in (text_a, text_b)))
    assert 0.6 * same / 3000 <= share <= same / 3000


@given(st.text(max_size=400), st.lists(st.integers(0, 2**70), min_size=1), st.sampled_from(("", "a")))
def test_every_prompt_has_keys(text: str, ids: list[int], salt: str) -> None:
    for prompt in ({"text": text}, {"token_ids": tuple(ids)}, {"messages": chat(text, "")}):
        prompt_keys = keys(**prompt, sharing=Sharing(cache_salt=salt))
        assert len(prompt_keys.keys) == len(prompt_keys.shares) == len(set(prompt_keys.keys)) > 0
        assert list(prompt_keys.shares) == sorted(prompt_keys.shares)
        assert prompt_keys == keys(**prompt, sharing=Sharing(cache_salt=salt))


@pytest.mark.parametrize(
    "change", [{"sharing": Sharing(cache_salt="b")}, {"text": None, "messages": ({"role": "user", "content": TEXT},)}]
)
def test_prompts_that_never_share_a_page_share_no_key(change: dict[str, Any]) -> None:
    original = request(text=TEXT, sharing=Sharing(cache_salt="a"))
    assert not set(prefix_keys(original).keys) & set(prefix_keys(replace(original, **change)).keys)


def test_every_turn_of_a_chat_is_the_beginning_of_the_next() -> None:
    turns = [chat(*("x" * 7 * n for n in range(1, length))) for length in (2, 4, 6, 40)]
    for earlier, later in pairwise(turns[:-1]):
        assert keys(messages=earlier).keys[-1] in keys(messages=later).keys
    assert shared(keys(messages=turns[-1]), keys(messages=turns[-1][:-2])) > 0.85
    assert len({keys(messages=turn).home for turn in turns}) == 1, "the turns have different homes"


def test_a_session_is_its_tenants_and_its_salts_own() -> None:
    original = request(text=TEXT, session="s")
    changes = ({"session": "t"}, {"sharing": Sharing("u")}, {"sharing": Sharing(cache_salt="v")})
    sessions = [prefix_keys(each).session for each in (original, *(replace(original, **change) for change in changes))]
    assert len(set(sessions)) == 4
    alike = [
        replace(original, sharing=Sharing(cache_salt=salt), session=name)
        for salt, name in (("a", "b\x00c"), ("a\x00b", "c"))
    ]
    assert len({prefix_keys(each).session for each in alike}) == 2
    assert prefix_keys(original).home == sessions[0]
    assert keys(text=TEXT).session is None


def test_other_processes_make_the_same_keys() -> None:
    """Also where Python hashes texts by another random seed."""
    program = "from tests.routing.test_keys import *; print(keys(text=TEXT, session='s'), keys(token_ids=(1, 2, 3)))"
    command = [sys.executable, "-c", program]
    outputs = {
        subprocess.run(command, env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{keys(text=TEXT, session='s')} {keys(token_ids=(1, 2, 3))}\n".encode()}
