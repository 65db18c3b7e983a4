"""Searches for the constraint that takes most of one call, among intersections just below the limit.

    python -m tests.constraints.worst SECONDS [SEED]

Each is followed in a process of its own, with 1.5 GiB and 20 s of CPU time. It begins with a prefix that hides it from
its compiler. Prints the worst CPU time and memory of one token, by form.
"""

import itertools
import multiprocessing
import random
import resource
import string
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

from service.constraints.checks import MAX_PRODUCT
from service.constraints.constraint import Constraint
from service.constraints.grammars import compile_grammar
from service.errors import ConstraintFailed, InvalidRequest
from tests.constraints.checkpoints import DEMO, tokenizer, vocabulary

_LETTERS = string.ascii_letters + string.digits
_PAIRS = ["".join(pair) for pair in itertools.combinations(_LETTERS, 2)]
_KINDS = ("L", "N", "P", "S", "Z", "Lu", "Ll", "Lo", "Mn", "Nd", "Po", "Sm", "So")
_AROUND = len("(c{8}(z)?)?")


def pattern(rng: random.Random, length: int) -> str:
    """A pattern of many classes, with at most so many characters; the first eight are always `c`."""
    letters, pairs = rng.sample(_LETTERS, len(_LETTERS)), rng.sample(_PAIRS, len(_PAIRS))
    lowest = rng.randrange(3)
    form = rng.choice(("[^{}]?", "[^{}]*", "[{}e]?", "(?:[^{}]x)?", "[^{}]{{0,40}}"))
    parts = [form.format(text) for text in (*letters, *pairs)]
    if lowest == 1:
        parts = [rng.choice((f"\\p{{{rng.choice(_KINDS)}}}?", part)) for part in parts]
    elif lowest == 2:
        parts = [f"(?s:.*)[{rng.choice(_LETTERS)}e](?s:.{{{rng.randrange(60)}}})", *parts]
    sizes = itertools.accumulate(map(len, parts))
    fitting = [part for part, size in zip(parts, sizes, strict=True) if size + _AROUND <= length]
    return f"(c{{8}}({''.join(fitting)}z)?)?"


def constraint(rng: random.Random) -> tuple[str, Constraint]:
    """One just below the limit, and the name of its form."""
    form, parts = rng.choice(("&", "& names", "~", "allOf", "patternProperties")), rng.choice((2, 2, 3, 3, 4, 5, 6))
    if form in ("~", "patternProperties"):
        parts = 2
    length = int(MAX_PRODUCT ** (1 / parts)) - (10 if form == "allOf" else 4)
    patterns = [pattern(rng, length) for _ in range(parts)]
    if form == "allOf":
        if parts > 4:
            patterns = [
                rng.choice(("[^{}]", "[{}e]", "^([^{}]z)?$", "{}|e")).format(text)
                for text in rng.sample(_LETTERS, parts)
            ]
        schema = {"allOf": [{"type": "string", "pattern": f"^{text}$" if parts < 5 else text} for text in patterns]}
        return f"{form}, {parts}", Constraint.json(schema, "schema")
    whole = pattern(rng, 2 * length - 30)
    if form == "patternProperties":
        schema = {"type": "object", form: {f"^{whole}$": {"type": "null"}}, "additionalProperties": {"type": "null"}}
        return form, Constraint.json(schema, "schema")
    if form == "~":
        return form, Constraint.grammar(f"start: T\nT: /(?s:.*)/ & ~/{whole}/")
    joined = " & ".join(f"/{text}/" for text in patterns)
    if form == "&" or parts != 4:
        return f"&, {parts}", Constraint.grammar(f"start: T\nT: {joined}")
    return "& of names", Constraint.grammar(f'start: T\nA: /{patterns[0]}/ & /{patterns[1]}/\nT: (A "a"?) & (A "b"?)')


def follow(to: Connection, tried: Constraint, seed: int) -> None:
    """Sends the worst CPU seconds and MiB of one token; -1 seconds if it does not compile."""
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + 1536 * 2**20,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
    rng, seconds, before = random.Random(seed), -1.0, 0
    try:
        way = compile_grammar(tried, vocabulary(DEMO)).open()
        before, seconds = _memory("VmHWM"), 0.0
        begin = {"json": '{"' if "properties" in tried.source.lower() else '"'}.get(tried.kind, "")
        for token in tokenizer(DEMO).encode(begin + "c" * 8 + "".join(rng.choices("e0Az", k=8))).ids:
            began = time.thread_time()
            try:
                way.mask(())
                way.advance((token,))
            finally:
                seconds = max(seconds, time.thread_time() - began)
    except (InvalidRequest, ConstraintFailed):
        pass
    to.send((seconds, (_memory("VmHWM") - before) >> 20))


def _memory(what: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) * 1024


def search(seconds: float, seed: int) -> None:
    """Prints a line for each form."""
    rng, end = random.Random(seed), time.monotonic() + seconds
    tried, refused, died = Counter[str](), Counter[str](), Counter[str]()
    worst: dict[str, tuple[float, int]] = {}
    vocabulary(DEMO)
    while time.monotonic() < end:
        form, item = constraint(rng)
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=follow, args=(sender, item, rng.random()))
        process.start()
        sender.close()
        tried[form] += 1
        try:
            took, memory = receiver.recv()
            refused[form] += took < 0
            cpu, most = worst.get(form, (0.0, 0))
            worst[form] = (max(took, cpu), max(memory, most) if took >= 0 else most)
        except EOFError:
            died[form] += 1
        process.join()
    for form in sorted(tried):
        cpu, most = worst.get(form, (0.0, 0))
        print(f"{form}: {tried[form]} tried, {refused[form]} refused, {died[form]} died, {cpu:.3f} s, {most} MiB")  # noqa: T201


if __name__ == "__main__":
    search(float(sys.argv[1]), int((sys.argv[2:] or ["1"])[0]))
