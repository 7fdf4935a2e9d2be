"""`DURABLE["ALERTS"]`: the conditions that alerts are sent for, and their targets.

"ALERTS": {
    "events": ["cause", "rollback", "held", "hung_step", "queue", "schedule", "retention", "database"],
    "site": "https://shop.example.org",
    "queue": "default",
    "targets": [
        {"type": "mail", "to": ["ops@example.org"]},
        {"type": "webhook", "url": "https://hooks.example.org/durable", "secret": os.environ["HOOK_SECRET"]},
        {"type": "call", "function": "shop.alerts.page"},
    ],
}
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

from durable.core.numbers import is_number

#: The kinds of conditions: alerts are sent for all of them unless `events` names some.
EVENTS: Final = ("cause", "rollback", "held", "hung_step", "queue", "schedule", "retention", "database")
_KEYS: Final = ("targets", "events", "site", "queue", "from_email")
_OF_TYPE: Final[Mapping[str, tuple[str, ...]]] = {
    "mail": ("to",),
    "webhook": ("url", "secret", "timeout"),
    "call": ("function",),
}
_TIMEOUT: Final = 10.0


class AlertSettingsError(ValueError):
    """The setting cannot be read; `hint` says what to do. Neither contains a value that may be a secret."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A target of alerts. `name` is the type, with a number from the second target of a type on; runs record it."""

    name: str
    type: str
    to: Sequence[str] = ()
    url: str = ""
    secret: str = ""
    timeout: float = _TIMEOUT
    function: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """The setting, validated. `site` is the address of the project, for links; "" for no links.

    `queue` is that of the runs that send alerts, None for the default queue. `from_email` is the sender of mails, None
    for Django's DEFAULT_FROM_EMAIL.
    """

    targets: Sequence[Target]
    events: Sequence[str] = EVENTS
    site: str = ""
    queue: str | None = None
    from_email: str | None = None

    @classmethod
    def of(cls, setting: Mapping[str, Any]) -> Self:
        """Return the settings. Raises AlertSettingsError if they are invalid."""
        if not isinstance(setting, Mapping):
            raise AlertSettingsError("it must be a dict", "Give a dict with the key targets, or None for no alerts.")
        _check_names(setting, _KEYS, "it")
        given = setting.get("targets")
        if not _is_list(given) or not given:
            raise AlertSettingsError("it has no targets", f"List targets, each a dict with a type: {_any(_OF_TYPE)}.")
        targets: list[Target] = []
        for each in given:
            targets.append(_target(each, [target.type for target in targets]))
        events = setting.get("events", EVENTS)
        if not _is_list(events) or any(each not in EVENTS for each in events):
            what = "events is not a list of known events"
            raise AlertSettingsError(what, f"The events are {', '.join(EVENTS)}.")
        site = setting.get("site", "")
        if not isinstance(site, str) or (site and not _is_web(site)):
            raise AlertSettingsError(
                "site is not an address", 'Give the project\'s address, such as "https://example.org".'
            )
        for name in ("queue", "from_email"):
            if not isinstance(setting.get(name), str | None):
                raise AlertSettingsError(f"{name} is not a text", "Give a text, or leave it out.")
        return cls(
            targets=targets,
            events=tuple(events),
            site=site.rstrip("/"),
            queue=setting.get("queue"),
            from_email=setting.get("from_email"),
        )

    def target(self, name: str) -> Target | None:
        """Return the target of this name; None if the settings no longer have it."""
        return next((each for each in self.targets if each.name == name), None)


def _target(given: Any, types: Sequence[str]) -> Target:
    if not isinstance(given, Mapping) or given.get("type") not in _OF_TYPE:
        raise AlertSettingsError("a target has no known type", f"The types are {_any(_OF_TYPE)}.")
    kind = given["type"]
    _check_names(given, ("type", *_OF_TYPE[kind]), f"a target of type {kind}")
    number = types.count(kind) + 1
    target = Target(**{**given, "name": kind if number == 1 else f"{kind} {number}"})
    if kind == "mail" and not (_is_list(target.to) and target.to and all(_is_text(each) for each in target.to)):
        raise AlertSettingsError("a mail has no recipients", 'Give "to": a list of addresses.')
    if kind == "webhook":
        if not _is_text(target.url) or not _is_web(target.url):
            raise AlertSettingsError("a webhook has no url", 'Give "url": an address that begins with https://.')
        if not _is_text(target.secret):
            raise AlertSettingsError("a webhook has no secret", 'Give "secret": a text with which requests are signed.')
        if not is_number(target.timeout) or target.timeout <= 0:
            raise AlertSettingsError("a webhook's timeout is wrong", "Give seconds above 0.")
    if kind == "call" and not _is_text(target.function):
        raise AlertSettingsError("a call has no function", 'Give "function": the dotted path of function(alert).')
    return target


def _check_names(given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(str(name), known, n=1)
            advice = f'Did you mean "{nearest[0]}"? ' if nearest else ""
            raise AlertSettingsError(f"{what} has an unknown key", f"{advice}Known are {', '.join(known)}.")


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_web(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _any(names: Mapping[str, object]) -> str:
    return ", ".join(f'"{each}"' for each in names)
