"""Metrics and labels that a PromQL expression names, and those that the service exposes."""

import re

import promql_parser

from service.telemetry.metrics import METRICS, PREFIX

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
