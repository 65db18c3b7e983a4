"""What lm-evaluation-harness calls with a held-out problem and its answer: the demo's strict checker."""

from service.demo import Problem


def right(doc, results):
    return {"right": float(Problem(doc["prompt"]).check(results[0]))}
