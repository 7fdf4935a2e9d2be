"""An integration for Sentry's SDK (`durable-django[sentry]`): check-ins of schedules, and events that name their run.

    sentry_sdk.init(dsn="...", integrations=[DurableIntegration(site="https://example.org")])

Owns what Sentry gets about runs besides the log, from which its SDK makes an event for each failed run:

- Each event about a run has its workflow, its id and its step as tags, and a link to its page. A failed run has the
  fingerprint of its cause, so that one cause is one issue, as it is one line in the admin. The control flow that ends a
  pass is not an event, even if code captures it. A pass has breadcrumbs of its own.
- The run of a tick is a check-in of its schedule's monitor: in progress from the tick on, then "ok" or "error". Its id
  follows from the run's, so any process may send the end. The monitor's configuration comes from the schedule.

Signals and observers report it, which a worker that dies does not call: a check-in may stay in progress until
Sentry times it out. Must not break a run, and must not send payloads.

The shape is that of the SDK's own integrations for Celery and RQ.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Final

import sentry_sdk
from sentry_sdk.crons import capture_checkin
from sentry_sdk.crons.consts import MonitorStatus
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor

from durable import signals
from durable.core.control_flow import ControlFlow
from durable.core.current import running_place
from durable.core.records import RunRecord, RunState
from durable.core.run_pass import PassOutcome
from durable.instrumentation import observers
from durable.instrumentation.observers import Observer, PassEnds
from durable.schedules.rules import Cron, Rule

if TYPE_CHECKING:
    from sentry_sdk._types import Event, Hint, MonitorConfig, MonitorConfigSchedule

    from durable.models import Schedule

__all__ = ["DurableIntegration", "monitor_config_of", "monitor_slug_of"]

#: Minutes that a check-in may come late besides the jitter: no alarm if no worker runs during a deploy.
MARGIN: Final = 5
#: Minutes that a run may take until Sentry gives it up.
MAX_RUNTIME: Final = 24 * 60
#: The longest slug of a monitor.
MAX_SLUG: Final = 50

_UNITS: Final = (("week", 7 * 24 * 60), ("day", 24 * 60), ("hour", 60), ("minute", 1))  # in minutes
_ENDS: Final[Mapping[str, str]] = {
    RunState.COMPLETED: MonitorStatus.OK,
    RunState.FAILED: MonitorStatus.ERROR,
    RunState.CANCELLED: MonitorStatus.ERROR,
}


class DurableIntegration(Integration):
    """Sentry's integration of durable, for the argument `integrations` of `sentry_sdk.init`.

    `site` is the project's address, such as "https://example.org", for links to runs; without it a link is a path.
    `monitor_schedules=False` sends no check-ins. `monitor_config` are Sentry's keys for all monitors, for example
    `{"failure_issue_threshold": 2}`. `monitors` has the keys for single schedules by name, or None for a schedule
    without a monitor. Both win over the keys that the schedule gives.
    """

    identifier = "durable"
    origin: ClassVar[str] = f"auto.queue.{identifier}"

    def __init__(
        self,
        *,
        site: str = "",
        monitor_schedules: bool = True,
        monitor_config: Mapping[str, Any] | None = None,
        monitors: Mapping[str, Mapping[str, Any] | None] | None = None,
    ) -> None:
        self.site = site.rstrip("/")
        self.monitor_schedules = monitor_schedules
        self._for_all = dict(monitor_config or {})
        self._for_one = dict(monitors or {})

    @staticmethod
    def setup_once() -> None:
        """Connect durable with the SDK. Called once in a process, by `sentry_sdk.init`."""
        add_global_event_processor(_process)
        observers.install(_Scopes())
        signals.run_changed.connect(_check_in, dispatch_uid="durable.contrib.sentry")

    def config_of(self, schedule: Schedule) -> MonitorConfig | None:
        """Return the configuration of the schedule's monitor; None for a schedule without one."""
        own = self._for_one.get(schedule.name, {})
        config = None if own is None else monitor_config_of(schedule)
        if config is None or own is None:
            return None
        merged: Any = {**config, **self._for_all, **own}
        found: MonitorConfig = merged
        return found


def _integration() -> DurableIntegration | None:
    return sentry_sdk.get_client().get_integration(DurableIntegration)


# -- events


def _process(event: Event, hint: Hint) -> Event | None:
    """Tag an event about a run, and drop control flow. Called by the SDK for each event before it is sent."""
    integration = _integration()
    if integration is None or event.get("type") == "check_in":
        return event
    raised = hint.get("exc_info")
    if raised is not None and isinstance(raised[1], ControlFlow):
        return None
    record = hint.get("log_record")
    here = running_place()
    run_id, workflow, step = (
        str(getattr(record, name, "") or found)
        for name, found in zip(("run_id", "workflow", "location"), here, strict=True)
    )
    if not run_id:
        return event
    from durable.alerts.conditions import keyed_path  # once Django is set up

    tags: dict[str, str] = {"durable.run_id": run_id, "durable.workflow": workflow, "durable.step": step}
    event.setdefault("tags", {}).update({name: value[:200] for name, value in tags.items() if value})
    event.setdefault("contexts", {})["durable"] = {
        "run_id": run_id,
        "workflow": workflow,
        "step": step,
        "url": integration.site + keyed_path("durable_run_change", run_id),
    }
    if (cause := getattr(record, "cause", None)) is not None:
        event["fingerprint"] = ["durable", *cause]
    return event


class _Scopes(Observer):
    """An observer that gives each pass an isolation scope: no breadcrumbs of the worker's other runs."""

    def pass_begins(self, run: RunRecord, now: datetime) -> PassEnds | None:
        if _integration() is None:
            return None
        block = sentry_sdk.isolation_scope()
        block.__enter__().clear_breadcrumbs()

        def ends(outcome: PassOutcome | None, error: BaseException | None) -> None:
            block.__exit__(None, None, None)

        return ends


# -- check-ins


def _check_in(*, run: str, state: str, previous: str, **_: Any) -> None:
    """A receiver of `run_changed`: send the check-in of a run that a tick has started, or that has ended."""
    integration = _integration()
    status = MonitorStatus.IN_PROGRESS if not previous else _ENDS.get(state)
    if integration is None or not integration.monitor_schedules or status is None or "@" not in run:
        return
    from durable.inspection.schedules import tick_of

    tick = tick_of(run)
    if tick is None or tick.kind not in ("tick", "catch_up"):
        return  # "run now" and backfills are not what the monitor expects
    config = integration.config_of(tick.schedule)
    if config is not None:
        capture_checkin(
            monitor_slug=monitor_slug_of(tick.schedule.name),
            check_in_id=hashlib.sha256(run.encode(errors="surrogatepass")).hexdigest()[:32],
            status=status,
            monitor_config=config,
        )


def monitor_slug_of(name: str) -> str:
    """Return the slug of the schedule's monitor: `shop-nightly_report` for `shop.nightly_report`.

    A name that does not fit into a slug gets a part of its hash at the end.
    """
    slug = name.replace(".", "-")
    if len(slug) <= MAX_SLUG and re.fullmatch(r"[a-z0-9_-]*[a-z_-][a-z0-9_-]*", slug):
        return slug
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    kept = re.sub(r"[^a-z0-9_-]+", "-", slug.lower()).strip("-")
    return f"{kept[: MAX_SLUG - 9]}-{digest}".lstrip("-")


def monitor_config_of(schedule: Schedule) -> MonitorConfig | None:
    """Return what the monitor of this schedule expects: when, in which time zone, and how late at most.

    None if Sentry cannot express it: several rules, an interval that is not of whole minutes, a schedule whose code is
    gone.
    """
    rules = schedule.rules.rules
    if schedule.gone_at is not None or len(rules) != 1:
        return None
    when = _when(rules[0])
    if when is None:
        return None
    return {
        "schedule": when,
        "timezone": schedule.zone_in_force,
        "checkin_margin": MARGIN + math.ceil(schedule.jitter / timedelta(minutes=1)),
        "max_runtime": MAX_RUNTIME,
    }


def _when(rule: Rule) -> MonitorConfigSchedule | None:
    if isinstance(rule, Cron):  # Sentry reads the fields with the same library
        return {"type": "crontab", "value": rule.expression}
    minutes, rest = divmod(rule.duration, timedelta(minutes=1))
    if rest:
        return None
    unit: Any
    unit, size = next(each for each in _UNITS if not minutes % each[1])
    return {"type": "interval", "value": minutes // size, "unit": unit}
