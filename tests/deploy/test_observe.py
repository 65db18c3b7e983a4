"""Dashboard, alert rules and their deployment: every name exists, every rule fires, every alert has a runbook."""

import itertools
import json
import re
import shutil
import subprocess

import promql_parser
import pytest
import yaml

from service import errors
from service.telemetry.metrics import METRICS, PREFIX
from tests.deploy.dockerfile import ROOT
from tests.deploy.kubernetes import KUBERAY

OBSERVE = ROOT / "deploy" / "observe"
DASHBOARD = json.loads((OBSERVE / "grafana" / "dashboards" / "mrp-serve.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
GROUPS = yaml.safe_load((OBSERVE / "rules.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
RUNBOOK = (ROOT / "docs" / "operations.md").read_text()
#: labels that a scrape adds
SCRAPED = {"job", "instance", "replica"}


def selectors(expression):
    """(metric, labels) of every selector. ValueError for an expression that is none."""
    for variable, value in (("$__rate_interval", "1m"), ("$job", "any")):  # Grafana's variables
        expression = expression.replace(variable, value)
    promql_parser.parse(expression)
    matches = re.findall(rf"\b({PREFIX}\w+|up)\b(?:\{{([^}}]*)\}})?", expression)
    return [(name, set(re.findall(r"(\w+)\s*[=!]", labels))) for name, labels in matches]


def exposed():
    """Every sample name of ours and its labels: three for a histogram."""
    names = {}
    for metric in METRICS:
        labels, name = {*metric.labels, *SCRAPED}, PREFIX + metric.name
        names |= {name: labels}
        if metric.kind == "histogram":
            del names[name]
            names |= {f"{name}_bucket": {*labels, "le"}, f"{name}_sum": labels, f"{name}_count": labels}
    return names


def problems(expression):
    """Names and labels in an expression that the service does not expose."""
    existing, chosen = exposed(), selectors(expression)
    unknown = [f"{name} is no metric of ours" for name, _ in chosen if name not in existing and name != "up"]
    matches = [(name, labels) for name, labels in chosen if name in existing]
    for name, labels in matches:
        unknown += [f"{name} has no label {label}" for label in labels - existing[name]]
    groups = re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", expression)
    grouped = set(re.findall(r"\w+", " ".join(groups)))
    everywhere = SCRAPED.union(*(existing[name] for name, _ in matches))
    return unknown + [f"no metric has the label {label}" for label in grouped - everywhere]


def expressions(panel):
    return [target["expr"] for target in panel["targets"]]


def promtool(*words, **options):
    if shutil.which("promtool") is None:
        pytest.skip("promtool checks the rules; pip cannot install it, `apt-get install prometheus` does")
    return subprocess.run(["promtool", *words], capture_output=True, text=True, check=False, **options)


# --- the dashboard ---------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_what_exists(panel):
    assert expressions(panel)
    for target in panel["targets"]:
        assert problems(target["expr"]) == []
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert named <= {label for name, _ in selectors(target["expr"]) for label in exposed()[name]}


def test_every_selector_obeys_the_variable():
    for panel in PANELS:
        for text in expressions(panel):
            assert all("job" in labels for _, labels in selectors(text)), panel["title"]


def test_the_dashboard_finds_its_data_source():
    folder = OBSERVE / "grafana" / "provisioning"
    [source] = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    [variable] = [entry for entry in DASHBOARD["templating"]["list"] if entry["type"] == "datasource"]
    assert variable["query"] == source["type"]
    assert variable["current"]["value"] == source["uid"]
    used = {part["datasource"]["uid"] for panel in PANELS for part in (panel, *panel["targets"])}
    assert used == {"${datasource}"}


# --- the alerts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_exists_and_has_its_part_of_the_runbook(rule):
    assert problems(rule["expr"]) == []
    assert rule["labels"]["severity"] in {"page", "ticket"}
    link = f"docs/operations.md#{rule['alert'].lower()}"
    assert rule["annotations"]["runbook_url"] == f"{{{{ $externalLabels.runbooks }}}}/{link}"
    assert f"\n### {rule['alert']}\n" in RUNBOOK
    assert rule["for"]


def test_the_runbook_speaks_of_no_other_alert():
    assert set(re.findall(r"^### (MrpServe\w+)$", RUNBOOK, re.MULTILINE)) == {rule["alert"] for rule in RULES}


def test_reasons_in_the_rules_are_codes_of_errors():
    matches = re.findall(r'reason=~?"([^"]+)"', " ".join(rule["expr"] for rule in RULES))
    assert matches
    assert set(itertools.chain(*(reasons.split("|") for reasons in matches))) <= set(errors.codes())


def test_the_alert_of_errors_has_every_reason_that_is_the_services_fault():
    """All 5xx of requests, and `quarantined`. Deadlines have an alert of their own."""
    codes = {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.MrpServeError) and kind.status >= 500
    }
    elsewhere = {"deadline_exceeded", "weight_update_failed", "generation_change_failed", "asleep", "ingress_lost"}
    elsewhere |= {"cache_reset_failed"}
    never_sent = {"checkpoint_error", "data_error", "settings_error"}
    [rule] = [rule for rule in RULES if rule["alert"] == "MrpServeErrors"]
    [reasons] = re.findall(r'reason=~"([^"]+)"', rule["expr"])
    assert set(reasons.split("|")) == codes - elsewhere - never_sent | {"quarantined"}


def test_the_operators_rules_are_these():
    [document] = yaml.safe_load_all((KUBERAY / "components" / "monitoring" / "rules.yaml").read_text())
    assert document["spec"]["groups"] == GROUPS


def test_promtool_accepts_configuration_and_rules():
    done = promtool("check", "config", OBSERVE / "prometheus.yml")
    assert done.returncode == 0, done.stderr


def test_every_alert_has_a_series_with_which_it_fires():
    tests = yaml.safe_load((ROOT / "tests" / "deploy" / "alerts.yaml").read_text())["tests"]
    firing = [alert["alertname"] for test in tests for alert in test["alert_rule_test"] if alert.get("exp_alerts")]
    assert set(firing) == {rule["alert"] for rule in RULES}


def test_alerts_fire_when_they_should(tmp_path):
    """The rules are where promtool's tests look for them, without annotations, which it would want repeated."""
    bare = [{**group, "rules": [{**rule, "annotations": {}} for rule in group["rules"]]} for group in GROUPS]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": bare}))
    shutil.copy(ROOT / "tests" / "deploy" / "alerts.yaml", tmp_path)
    done = promtool("test", "rules", "alerts.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_mounts_what_is_there():
    services = yaml.safe_load((OBSERVE / "compose.yaml").read_text())["services"]
    mounts = [volume.split(":") for service in services.values() for volume in service["volumes"]]
    files = [source for source, *_ in mounts if source.startswith("./")]
    assert len(files) == 4
    assert all((OBSERVE / source).exists() for source in files)
    provider = yaml.safe_load((OBSERVE / "grafana" / "provisioning" / "dashboards" / "mrp-serve.yaml").read_text())
    assert provider["providers"][0]["options"]["path"] in {target for _, target, *_ in mounts}
