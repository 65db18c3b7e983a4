"""Links from strangers: what they put into the form, the request and the snippets. The modules run in Node."""

import ast
import json
import shutil
import subprocess
from typing import Any
from urllib.parse import urlencode

import pytest
from pydantic_core import to_json

from service.api.models import model_json
from service.gateway.playground.routes import files
from tests.gateway.doubles import CARD

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="the page's modules need Node.js, which pip cannot install")

SCRIPT = """
import { linked } from "./link.js";
import { WAYS } from "./copy.js";
import { Form } from "./form.js";
const { model, links } = JSON.parse(process.argv[2]);
const opened = (hash) => {
  globalThis.location = { hash };
  const state = linked(model);
  const body = Form.prototype.body.call({ state }, state.plans[0] ?? { mode: model.default_mode });
  const about = { url: "http://h/", locked: true, model: model.id };
  return { state, body, ways: Object.fromEntries(Object.entries(WAYS).map(([name, way]) => [name, way(body, about)])) };
};
console.log(JSON.stringify(links.map(opened)));
"""
CODE = "7)\n__import__('os').system('id')\ndict(\n seed=7"
TAKEN = {"seed": CODE, "messages": [], "prompt": "another", "grammar": "g", "threshold": 0.5}
FIELDS: list[dict[str, str]] = [{}, {"seed": CODE, "temperature": CODE, "tokens": CODE}, {"seed": "7"}]


def link(*plans, **fields):
    """The part of an address behind the page's own."""
    form = {"kind": "chat", "prompt": "the prompt", "seed": "", "temperature": "", "tokens": ""} | fields
    return "#" + urlencode([*form.items(), *(("plan", json.dumps(plan)) for plan in plans)])


def opened(folder, *links):
    """What the form, the request and the snippets are when each of the links is opened."""
    for name, content in files().items():
        (folder / name).write_bytes(content)
    (folder / "package.json").write_text('{"type": "module"}', "utf-8")
    (folder / "run.js").write_text(SCRIPT, "utf-8")
    command = [NODE or "", "run.js", to_json({"model": model_json(CARD), "links": links}).decode()]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    states: list[dict[str, Any]] = json.loads(run.stdout)
    return states


def test_a_plan_of_a_link_keeps_only_its_modes_knobs_with_numbers_or_choices(tmp_path):
    values = (CODE, None, True, [1], {"a": 1}, "auto", 0, 5, 1.5)
    wrong = [link({"mode": "static", "knobs": {"tokens_per_step": value}}) for value in values]
    plan = {"mode": "static", "knobs": {"tokens_per_step": 2, **TAKEN}, "prompt": "another", "max_new_tokens": 9}
    right, *without = opened(tmp_path, link(plan), *wrong)
    assert right["state"]["plans"] == [{"mode": "static", "knobs": {"tokens_per_step": 2}}]
    chat = [{"role": "user", "content": "the prompt"}]
    assert right["body"] == {"mode": "static", "tokens_per_step": 2, "messages": chat}
    assert [page["state"]["plans"] for page in without] == [[{"mode": "static", "knobs": {}}]] * len(values)


def test_a_link_without_a_plan_of_the_model_is_ignored(tmp_path):
    wrong = [None, 1, {}, {"mode": "toString"}, {"quality": "toString"}, {"quality": "none"}, {"mode": ["static"]}]
    [page] = opened(tmp_path, link(*wrong, {"quality": "lossless", "mode": "static", "knobs": {"seed": 1}}))
    assert page["state"]["plans"] == [{"quality": "lossless"}]


@pytest.mark.parametrize("kind", ["chat", "plain"])
def test_the_snippets_are_one_call_with_literals(tmp_path, kind):
    create = "client.chat.completions.create" if kind == "chat" else "client.completions.create"
    calls = {
        "Python": {"httpx.post", "answer.raise_for_status", "print", "answer.json"},
        "OpenAI client": {"openai.OpenAI", create, "print"},
    }
    links = [link({"mode": "static"}, kind=kind, prompt=f'"""\\{CODE}', **fields) for fields in FIELDS]
    for page in opened(tmp_path, *links):
        for name, expected in calls.items():
            nodes = list(ast.walk(ast.parse(page["ways"][name])))
            assert {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)} == expected
            names = {node.id for node in nodes if isinstance(node, ast.Name)}
            assert names <= {"httpx", "openai", "os", "client", "answer", "print"}
