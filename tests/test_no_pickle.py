"""No process of the service makes objects of a pickle: it would run code of the sender's choice."""

import ast
from functools import lru_cache

from tests.test_imports import imported, modules, within

#: module -> why it may pickle
ALLOWED = {
    "service.constraints.trials": "the vocabulary, to a process that it has started, over a pair of sockets",
}
#: what can make code or any class of bytes
LIBRARIES = {
    *("pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "copyreg", "ray.cloudpickle"),
    *("multiprocessing", "torch.load", "torch.save", "numpy.load"),
}


@lru_cache
def _imports() -> list[tuple[str, str]]:
    """Module and imported name, of the whole service."""
    texts = [(module, path.read_text("utf-8")) for module, path in modules().items() if module.startswith("service")]
    return [(module, name) for module, text in texts for name in imported(ast.parse(text))]


def test_nothing_pickles() -> None:
    users = {module for module, name in _imports() if any(within(name, library) for library in LIBRARIES)}
    assert users == set(ALLOWED)
