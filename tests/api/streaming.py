"""A client of the history stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.api.conftest import Api


class Reader:
    """Takes events as a client does, and keeps what it would show."""

    def __init__(self, api: Api, run_id: str) -> None:
        self.api = api
        self.path = f"/runs/{run_id}/events"
        self.entries: dict[str, Any] = {}
        self.run: dict[str, Any] = {}
        self.last = ""
        self.resets = 0
        self.has_ended = False

    def read(self) -> list[str]:
        """Ask once, as server-sent events; the names of what came."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self.last} if self.last else {})}
        answer = self.api.get(self.path, **headers)
        self.has_ended = answer.status_code == 204
        names = []
        for name, data, event_id in parsed(answer.content.decode()):
            self.take(name, data)
            self.last = event_id or self.last
            names.append(name)
        return names

    def take(self, name: str, data: dict[str, Any]) -> None:
        """What each event means."""
        if name == "entry":
            self.entries[data["location"]] = data
        elif name == "removed":
            assert set(data["locations"]) <= set(self.entries)
            for location in data["locations"]:
                del self.entries[location]
        elif name == "reset":
            self.entries.clear()
            self.resets += 1
        elif name == "run":
            self.run = data

    def assert_current(self) -> None:
        """The reader has what is there."""
        there = self.api.get("/runs/" + self.path.split("/")[2] + "/entries?limit=200").json()["results"]
        assert self.entries == {each["location"]: each for each in there}
        shown = self.api.get(self.path.removesuffix("/events")).json()
        assert {name: self.run[name] for name in ("state", "revision", "wake_at", "finished_at")} == {
            name: shown[name] for name in ("state", "revision", "wake_at", "finished_at")
        }


def parsed(text: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The events of a stream: name, data, id."""
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "event" in fields:  # and not a time for coming again alone
            yield fields["event"], json.loads(fields["data"]), fields.get("id", "")
