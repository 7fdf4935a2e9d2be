"""A finding: what the linter says about one line of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["error", "warning", "hint"]
LEVELS: Final[tuple[Level, ...]] = ("error", "warning", "hint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding. `line` counts from 1; `workflow` is the name of the workflow it was found in, "" for a whole file.

    "error": the code fails, or does other things when it is replayed. "warning": it may. "hint": it works, and could be
    better.
    """

    id: str
    path: str
    line: int
    workflow: str
    level: Level
    message: str
    fix: str

    def as_data(self) -> dict[str, str | int]:
        """Return the finding as JSON has it."""
        return {
            "id": self.id,
            "path": self.path,
            "line": self.line,
            "workflow": self.workflow,
            "level": self.level,
            "message": self.message,
            "fix": self.fix,
        }
