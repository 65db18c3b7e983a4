"""What a format of tool calls is: the texts around the name and the arguments, which are JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written.

    An answer is a content or none, `opening`, a call, and for each further call `between` and that call, at last
    `closing`. A call is `before_name`, its name, `after_name`, its arguments as a JSON object, `tail`.
    """

    name: str
    opening: str
    before_name: str
    after_name: str
    tail: str
    between: str
    closing: str = ""

    def head(self, name: str) -> str:
        """A call up to its arguments."""
        return f"{self.before_name}{name}{self.after_name}"

    def written(self, *calls: tuple[str, str]) -> str:
        """Calls as the model writes them. `calls`: the name and arguments of each."""
        parts = self.between.join(f"{self.head(name)}{arguments}{self.tail}" for name, arguments in calls)
        return f"{self.opening}{parts}{self.closing}" if calls else ""
