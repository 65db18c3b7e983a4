"""What a PromQL expression asks for: metrics, labels it matches, labels it groups by. Parsed, not searched."""

from dataclasses import dataclass, field

import promql_parser as promql

from service.telemetry.metrics import METRICS, PREFIX

#: what a scrape adds
SCRAPED = {"job", "instance", "replica"}


@dataclass
class Query:
    """The selectors (metric, labels) of an expression, and the labels its operators name."""

    selectors: list[tuple[str, set[str]]] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)


def parse(expression):
    """`Asked`, of an expression that may hold Grafana's variables."""
    for variable, value in (("$__rate_interval", "1m"), ("$job", "any")):
        expression = expression.replace(variable, value)
    query = Query()
    _walk(promql.parse(expression), query)
    return query


def _walk(node, query):
    match node:
        case promql.VectorSelector():
            query.selectors.append((node.name, {matcher.name for matcher in node.matchers.matchers}))
        case promql.MatrixSelector():
            _walk(node.vector_selector, query)
        case promql.AggregateExpr():
            query.grouped |= set(node.modifier.labels if node.modifier else ())
            _walk(node.expr, query)
        case promql.BinaryExpr():
            matching = node.modifier and node.modifier.matching
            query.grouped |= set(matching.labels if matching else ())
            _walk(node.lhs, query)
            _walk(node.rhs, query)
        case promql.Call():
            for argument in node.args:
                _walk(argument, query)
        case promql.ParenExpr() | promql.UnaryExpr():
            _walk(node.expr, query)
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
    existing, query = exposed(), parse(expression)
    unknown = [f"{name} is no metric of ours" for name, _ in query.selectors if name not in existing and name != "up"]
    matches = [(name, labels) for name, labels in query.selectors if name in existing]
    for name, labels in matches:
        unknown += [f"{name} has no label {label}" for label in labels - existing[name]]
    everywhere = set().union(*(existing[name] for name, _ in matches)) if matches else SCRAPED
    return unknown + [f"no metric has the label {label}" for label in query.grouped - everywhere]
