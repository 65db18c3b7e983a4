"""Counts how much of the official JSON Schema Test Suite constraints keep to.

    git clone https://github.com/json-schema-org/JSON-Schema-Test-Suite
    python -m tests.constraints.suite JSON-Schema-Test-Suite/tests/draft2020-12

A schema is *taken*, *taken in part* (without the keywords that are not supported, unless it is strict) or refused. Of a
taken one every instance is tried as the text that `json.dumps` makes: an invalid one that the grammar allows is an
error, a valid one that it does not allow is only a loss of freedom (another order of properties, another way to write a
number).
"""

import json
import sys
from collections import Counter
from pathlib import Path

from service.constraints.constraint import Constraint
from service.constraints.grammars import compile_grammar
from service.errors import InvalidRequest
from tests.constraints.checkpoints import DEMO, accepts, vocabulary


def count(folder: Path) -> tuple[Counter[str], list[str]]:
    """The counts, and the invalid instances that were allowed."""
    seen: Counter[str] = Counter()
    wrong = []
    for file in sorted(folder.glob("*.json")):
        for case in json.loads(file.read_text("utf-8")):
            constraint = Constraint.json(case["schema"], "schema", strict=False)
            try:
                grammar = compile_grammar(constraint, vocabulary(DEMO))
            except InvalidRequest:
                seen["schemas refused"] += 1
                continue
            if constraint.ignored:
                seen["schemas taken in part"] += 1
                continue
            seen["schemas taken"] += 1
            for test in case["tests"]:
                allowed = accepts(grammar, json.dumps(test["data"], ensure_ascii=False))
                seen[f"{'valid' if test['valid'] else 'invalid'} {'allowed' if allowed else 'not allowed'}"] += 1
                if allowed and not test["valid"]:
                    wrong.append(f"{file.name}: {case['description']}: {test['description']}")
    return seen, wrong


if __name__ == "__main__":
    counts, errors = count(Path(sys.argv[1]))
    print(*(f"{name}: {number}" for name, number in sorted(counts.items())), *errors, sep="\n")  # noqa: T201
