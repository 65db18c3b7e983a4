"""A batch as a Python object, for programs that have their lines in memory, such as workers of Ray Data.

model = BatchModel(model="service/demo")
[output] = model.answer([{"prompt": "The answer is", "max_new_tokens": 16}])
print(output["response"]["body"]["text"])
"""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from service.api.protocol import Json
from service.batch.answers import LineAnswers
from service.batch.lines import parsed_lines
from service.batch.replicas import BatchReplicas
from service.settings.settings import Settings

_T = TypeVar("_T")


class BatchModel:
    """Answers lines as `mrp-serve batch` does. `defaults`: fields of bodies without them. Raises errors of loading."""

    def __init__(self, defaults: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self._defaults, chosen = dict(defaults or {}), Settings(**settings)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="batch", daemon=True).start()
        self._replicas = self._run(BatchReplicas.start([chosen]))
        self._answers = LineAnswers(self._replicas, chosen)

    def answer(self, lines: Sequence[Mapping[str, Any]]) -> list[Json]:
        """The outputs of lines, in their order. An output has an answer or an error."""
        outputs: list[Json] = []
        self._run(self._answers.run(parsed_lines(lines, self._defaults), outputs.append))
        return sorted(outputs, key=lambda output: output["line"])

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._replicas.close)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
