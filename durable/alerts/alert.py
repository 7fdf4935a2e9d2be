"""An alert in the form that targets get."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A condition that has begun, or that `is_over`.

    `kind` is "cause", "rollback", "hung_step", "queue" or "schedule". `key` names the condition and `number` counts how
    often it has begun: the two, with `is_over`, are the same each time an alert is sent again. `title` is a sentence
    and `text` says more; neither contains a payload or the message of an error. `url` leads to a page of the admin, ""
    if `site` is not set. Times are of ISO 8601, in UTC; `ended_at` is "" as long as the condition holds.
    """

    kind: str
    key: str
    number: int
    title: str
    text: str
    url: str
    is_over: bool
    began_at: str
    ended_at: str

    @property
    def id(self) -> str:
        """A text that identifies this alert, and is the same each time it is sent."""
        return f"{self.key}#{self.number}#{'over' if self.is_over else 'begun'}"

    def data(self) -> dict[str, Any]:
        """Return the fields and the `id` as JSON data."""
        return {"id": self.id, **asdict(self)}
