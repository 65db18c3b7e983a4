"""schemathesis over the OpenAPI schema: no 5xx, documented answers only, what the schema forbids is refused.

The schema cannot know the served name, the number of token ids and the model's length. They are added here from
GET /v1/models. A body that the schema allows is accepted, except for the refusals in `BEYOND_THE_SCHEMA`.
"""

import re
from collections import Counter
from typing import Any

import httpx
import pytest

ANSWERED = ("2xx", "3xx", "4xx")
#: 504: the cases may send a time limit too short for anything
CHECKS = {
    "not_a_server_error": {"expected-statuses": [*ANSWERED, 504]},
    "positive_data_acceptance": {"expected-statuses": ["2xx", 401, 404, 413, 429, 504]},
}
#: why a body that the schema allows may be refused, all of them said by the docs
BEYOND_THE_SCHEMA = re.compile(
    r"maximum context length"  # prompt and max_new_tokens together
    r"|has the mask token"
    r"|does not use (tokens_per_step|threshold|mrp_steps|max_drafts|prompt_lookup_num_tokens|entropy_bound"
    r"|verify|margin) "  # on OpenAI's routes
    r"|, which needs max_drafts: "
    r"|drafts are verified against \w+, whose knobs are "
    r"|allowed with a margin are top_p 1, top_k 0 and min_p 0"
    r"|(logit_bias|bad_words) has token \d+, allowed are"
    r"|min_tokens is \d+, allowed are"
    r"|quality chooses the mode"  # on OpenAI's routes: beside a mode or a knob
    r"|this checkpoint has no quality.json"
    r"|allowed are 0 \(with max_drafts\), 1 to 8 \(the block size\)"
    r"|allowed are [01] to 8 \(the block size\)"
    r"|allowed is 0 < timeout_s"
    r"|stream_steps is true and stream is false"
    r"|tokenizer does not say which bytes its tokens are"  # constraints; tests/constraints has tokenizers that do
    r"|ignore_eos is true, which \w+ does not allow"  # with a constraint
    r"|are given, allowed is one of response_format, regex, choice, grammar"
    r"|the prompt is empty"  # no token is left of a text
    r"|echo is true"
    r"|log-probabilities per token are requested"
    r"|which needs logprobs true"
    r"|the last message is the assistant's"  # on Anthropic's routes
    r"|no call before has this id"
    r"|is a block \w+ of the role"
    r"|tools are given, and"  # tests/gateway have checkpoints that can call tools
    r"|tool_choice (asks for a call|names )"
    r"|output_config.format and response_format"
    r"|type (json_schema|structural_tag) has one, others have none"
    r"|response_format\.format[\w.]*\.type is .*, served are"  # a structural tag of another form
    r"|response_format\.format[\w.]* is (missing or of the wrong type|empty or has another type than tag)"
    r"|input has no message"
    r"|tokens, allowed is one: the tokens of a longer label"
    r"|are the same token"
    r"|(and|) ?label_token_ids are given, allowed is one of them"
    r"|has no labels, and top_logprobs is 0"
    r"|which the text does not have"
    r"|has mark and prompt_token_ids"
    r"|marked positions, allowed are"
    r"|which need stream true"
    r"|steps are events of a stream"
    r"|they mean the same"
    r"|are \d+ answers, allowed are|\d+ prompts are too many"
    r"|which is none of the tools"
    r"|there are no tools"
    r"|allowed is 'object'"
    r"|reasoning_effort is '\w+' and chat_template_kwargs"
)


def schema_of_this_model(url: str) -> dict[str, Any]:
    schema: dict[str, Any] = httpx.get(f"{url}/openapi.json", timeout=60).json()
    [model] = httpx.get(f"{url}/v1/models", timeout=60).json()["data"]
    _fill(schema, model)
    return schema


def _fill(part: Any, model: dict[str, Any]) -> None:
    if isinstance(part, list):
        for item in part:
            _fill(item, model)
    elif isinstance(part, dict):
        if part.get("type") == "integer" and part.get("minimum") == 0 and part.keys() == {"type", "minimum"}:
            part["maximum"] = model["vocab_size"] - 4  # the last three are mask, end and unknown
        properties = part.get("properties")
        if isinstance(properties, dict) and isinstance(properties.get("model"), dict) and "object" not in properties:
            properties["model"] = {"const": model["id"]}
        if isinstance(properties, dict) and isinstance(properties.get("n"), dict):
            properties["n"] = {**properties["n"], "maximum": 4}  # 128 answers a case would take long
        for name, item in part.items():
            if name != "stop_token_ids":  # any id may be there; one that no token has ends nothing
                _fill(item, model)


def violations(url: str, max_examples: int, phases: tuple[str, ...]) -> tuple[Counter[str], list[str]]:
    """Cases by route and status, and what was wrong."""
    import schemathesis  # takes seconds, in this worker only
    from schemathesis.checks import load_all_checks
    from schemathesis.config import SchemathesisConfig
    from schemathesis.engine import events, from_schema

    load_all_checks()
    names = ("examples", "coverage", "fuzzing", "stateful")
    config = SchemathesisConfig.from_dict(
        {
            "seed": 17,
            "cache": {"enabled": False},
            "base-url": url,
            "checks": CHECKS,
            "continue-on-failure": True,
            "request-timeout": 60,
            "generation": {"max-examples": max_examples, "deterministic": True, "no-shrink": True},
            "phases": {name: {"enabled": name in phases} for name in names},
        }
    )
    schema = schemathesis.openapi.from_dict(schema_of_this_model(url), config=config)
    cases: Counter[str] = Counter()
    faults: list[str] = []
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            faults.append(str(getattr(event, "value", None) or event))
        if isinstance(event, events.ScenarioFinished):
            _add_faults(event, cases, faults)
    return cases, faults


def _add_faults(event: Any, cases: Counter[str], faults: list[str]) -> None:
    for case, interaction in event.recorder.interactions.items():
        if interaction.response is None:
            faults.append(f"no answer: {_request_of(interaction)}")
            continue
        cases[f"{event.recorder.cases[case].value.operation.label} {interaction.response.status_code}"] += 1
    for case, checks in event.recorder.checks.items():
        for check in checks:
            if check.failure_info is None:
                continue
            interaction = event.recorder.interactions[case]
            if interaction.response is None:
                continue
            content = interaction.response.content.decode("utf-8", "replace")
            if check.name == "positive_data_acceptance" and BEYOND_THE_SCHEMA.search(_message(interaction.response)):
                continue
            faults.append(f"{check.failure_info.failure.title}: {_request_of(interaction)} -> {content[:300]}")


def _request_of(interaction: Any) -> str:
    request = interaction.request
    return f"{request.method} {request.uri} {request.body!r}"[:600]


def _message(response: Any) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""


pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


def test_a_few_cases_of_every_route(url):
    cases, faults = violations(url, 2, ("examples", "fuzzing"))
    assert not faults, "\n".join(faults)
    assert cases.total() >= 20


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_many_cases(url):
    cases, faults = violations(url, 900, ("examples", "coverage", "fuzzing", "stateful"))
    print(f"\n{cases.total()} cases: {dict(sorted(cases.items()))}")  # noqa: T201
    assert not faults, "\n".join(faults)
    assert cases.total() >= 5000
