"""Makes Serve's handles serialise by cloudpickle where they are told to use pickle, for `loadtest.settings`.

Python imports this module at its start if this folder is on its path. It must not import Ray itself, since Serve reads
its settings at that moment and the program has not made them yet.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_MODULE = "ray.serve._private.serialization"


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            raise ImportError(f"{fullname} is not there")
        execute = spec.loader.exec_module

        def replaced(module: ModuleType) -> None:
            execute(module)
            functions = (module.cloudpickle.dumps, module.cloudpickle.loads)
            module.RPCSerializer._get_pickle_funcs = lambda _: functions  # noqa: SLF001

        spec.loader.exec_module = replaced  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
