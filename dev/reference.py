"""`python -m dev.reference docs`: writes the reference pages of docs/ from the code: settings, metrics, commands.

A test compares the pages with what this writes, so a page is never edited by hand.
"""

import sys
from pathlib import Path
from typing import Any

from service.cli.main import app
from service.settings.settings import SECTIONS, VARIABLES, Settings, section_of
from service.settings.sources import ALIASES
from service.telemetry.metrics import METRICS, Metric

_SETTINGS = """# Settings

*`make docs` writes this page from `service/settings/settings.py`.*

A setting has three forms. The first form in this list has precedence:

1. a flag: `mrp-serve serve --max-num-seqs 32`
2. a variable: `MRP_SERVE_MAX_NUM_SEQS=32`
3. a line of the YAML or JSON file that `--config` names: `max_num_seqs: 32`

Deployment files have settings as `args` of `service.app:build`. An unknown name is an error. Names are vLLM's
where vLLM has the same thing. Some settings also have another name of vLLM or SGLang, in all three forms. Two names
with different values are an error. `mrp-serve serve MODEL` is `--model MODEL`.
"""

_SECTION = """
## {}

| setting | values | default | meaning |
|---|---|---|---|
"""

_VARIABLES = """
## Variables

Two variables are no settings. Every process reads them itself.

| variable | meaning |
|---|---|
"""

_METRICS = """# Metrics

*`make docs` writes this page from `service/telemetry/metrics.py`.*

`GET /metrics` has Prometheus' text format and covers all replicas. Every name begins with `mrp_`, unless it begins with
`vllm:`. The label `replica` names the replica. Times count from the arrival at the ingress. If another replica
continues an answer, its prompt and its first block count once.

Tokens per forward over time is the ratio of two counters:
`rate(mrp_generation_tokens_total[1m]) / rate(mrp_forwards_total{kind=~"denoise|verify"}[1m])`.

Counters with labels begin at 0 for every known value, so `rate` sees a first event. Positions and plans are not known
before.

A replica or ingress that stops takes its counters with it, so sums over the page fall. What it counted after the last
scrape is lost. Prometheus' `rate` and `increase` allow for this, by each `replica`. The difference of two pages does
not.

The names with `vllm:` are aliases: vLLM's metrics of diffusion models. `vllm bench serve` reads them, and prints the
committed tokens a second, the steps of a canvas (a block) and the tokens of a step. vLLM counts a step that commits a
canvas, and `vllm bench serve` takes it away again. So the alias counts one for each finished block, although the next
block's first forward writes its KV.

| metric | kind | counted by | labels | meaning |
|---|---|---|---|---|
"""

_COMMANDS = """# Commands

*`make docs` writes this page from the program.* `mrp-serve COMMAND --help` lists the options of a command.

| command | task |
|---|---|
"""


def write(folder: Path) -> None:
    """Writes every page into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """File name -> text of every page."""
    return {"settings.md": _settings(), "metrics.md": _metrics(), "commands.md": _commands()}


def _settings() -> str:
    schemas = Settings.model_json_schema()["properties"]
    also = {
        name: "".join(f"; also `{alias}`" for alias, setting in ALIASES.items() if setting == name) for name in schemas
    }
    defaults = {"model": "the shipped demo"}  # a path of this machine otherwise
    rows = {
        name: f"| `{name}` | {_values(schemas[name])} | {defaults.get(name, _default(field.default))} | "
        f"{field.description}{also[name]} |\n"
        for name, field in Settings.model_fields.items()
    }
    sections = "".join(
        _SECTION.format(title) + "".join(row for name, row in rows.items() if section_of(name) == title)
        for title in SECTIONS
    )
    variables = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in VARIABLES.items() if meaning)
    return _SETTINGS + sections + _VARIABLES + variables


def _default(value: object) -> str:
    if value is None or value == ():
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


#: a JSON schema's types, in words
_KINDS = {
    "array": "texts",
    "boolean": "`true`, `false`",
    "integer": "whole number",
    "number": "number",
    "string": "text",
}


def _values(schema: dict[str, Any]) -> str:
    """The values that a JSON schema allows, in words."""
    if "anyOf" in schema:
        return ", ".join(_values(option) for option in schema["anyOf"] if option.get("type") != "null")
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("format") == "path":
        return "path"
    return _KINDS[schema["type"]] + _bounds(schema)


def _bounds(schema: dict[str, Any]) -> str:
    if "maximum" in schema and "exclusiveMinimum" in schema:
        return f", more than {schema['exclusiveMinimum']:g}, at most {schema['maximum']:g}"
    if "maximum" in schema:
        return f", {schema['minimum']} to {schema['maximum']}"
    if "minimum" in schema:
        return f", {schema['minimum']:g} or more"
    return f", more than {schema['exclusiveMinimum']:g}" if "exclusiveMinimum" in schema else ""


def _metrics() -> str:
    return _METRICS + "\n".join(map(_metric, METRICS)) + "\n"


def _metric(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {metric.where} | {labels} | {metric.help} |"


def _commands() -> str:
    rows = (
        f"| `mrp-serve {command.name}` | {(command.callback.__doc__ or '').splitlines()[0]} |"
        for command in app.registered_commands
        if command.callback is not None
    )
    return _COMMANDS + "\n".join(rows) + "\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
