"""What a PromQL expression asks for: metrics, labels it matches, labels it groups by. Parsed, not searched."""

from dataclasses import dataclass, field

import promql_parser as promql

from service.telemetry.metrics import METRICS, PREFIX

#: what a scrape adds
SCRAPED = {"job", "instance", "replica"}


@dataclass
class Asked:
    """The selectors (metric, labels) of an expression, and the labels its operators name."""

    selectors: list[tuple[str, set[str]]] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)


def parse(expression):
    """`Asked`, of an expression that may hold Grafana's variables."""
    for variable, value in (("$__rate_interval", "1m"), ("$job", "any")):
        expression = expression.replace(variable, value)
    asked = Asked()
    _walk(promql.parse(expression), asked)
    return asked


def _walk(node, asked):
    match node:
        case promql.VectorSelector():
            asked.selectors.append((node.name, {matcher.name for matcher in node.matchers.matchers}))
        case promql.MatrixSelector():
            _walk(node.vector_selector, asked)
        case promql.AggregateExpr():
            asked.grouped |= set(node.modifier.labels if node.modifier else ())
            _walk(node.expr, asked)
        case promql.BinaryExpr():
            matching = node.modifier and node.modifier.matching
            asked.grouped |= set(matching.labels if matching else ())
            _walk(node.lhs, asked)
            _walk(node.rhs, asked)
        case promql.Call():
            for argument in node.args:
                _walk(argument, asked)
        case promql.ParenExpr() | promql.UnaryExpr():
            _walk(node.expr, asked)
        case promql.NumberLiteral() | promql.StringLiteral():
            pass
        case _:
            raise AssertionError(f"an expression of a kind this walk does not know: {type(node).__name__}")


def exposed():
    """Every sample name of ours and its labels: three for a histogram."""
    names = {}
    for metric in METRICS:
        labels = {*metric.labels, *SCRAPED}
        if metric.kind == "histogram":
            names[f"{PREFIX}{metric.name}_bucket"] = {*labels, "le"}
            names[f"{PREFIX}{metric.name}_sum"] = names[f"{PREFIX}{metric.name}_count"] = labels
        else:
            names[PREFIX + metric.name] = labels
    return names


def problems(expression):
    """Names and labels in an expression that the service does not expose."""
    known, asked = exposed(), parse(expression)
    unknown = [f"{name} is no metric of ours" for name, _ in asked.selectors if name not in known and name != "up"]
    found = [(name, labels) for name, labels in asked.selectors if name in known]
    for name, labels in found:
        unknown += [f"{name} has no label {label}" for label in labels - known[name]]
    everywhere = set().union(*(known[name] for name, _ in found)) if found else SCRAPED
    return unknown + [f"no metric has the label {label}" for label in asked.grouped - everywhere]
