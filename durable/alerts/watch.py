"""Look for conditions that have begun or ended, and start the runs that send the alerts.

Any number of processes may check. The row of a condition decides: the process that changes it starts the runs, in the
same transaction, with ids derived from the alert.

While the database is behind its mark, workers claim no run. This alert is delivered by the process that checks, and by
a run only if that fails.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import translation

from durable.alerts.alert import Alert
from durable.alerts.delivery import deliver, send_alert
from durable.alerts.settings import AlertSettings, AlertSettingsError, Target
from durable.conf import conf
from durable.models import AlertState

if TYPE_CHECKING:
    from durable.alerts.conditions import Condition

logger = logging.getLogger("durable.alerts")

EVERY: Final = timedelta(seconds=30)
#: How long a queue must have been without a worker, and a condition be gone, before an alert is sent.
PATIENCE: Final = timedelta(seconds=60)
_MOST: Final = 500  # conditions that are open at a time
_IMPATIENT: Final = frozenset({"cause", "rollback", "hung_step", "database"})


class Watch:
    """The checks of one process, which remembers since when it has seen conditions without an alert."""

    def __init__(self, patience: timedelta = PATIENCE) -> None:
        self._patience = patience
        self._begun: dict[str, datetime] = {}
        self._gone: dict[str, datetime] = {}

    def look(self, now: datetime) -> None:
        """Check once; does nothing without the setting."""
        if not conf.ALERTS:
            return
        try:
            settings = AlertSettings.of(conf.ALERTS)
        except AlertSettingsError as error:
            logger.error('no alert is sent, DURABLE["ALERTS"] cannot be read: %s. %s', error, error.hint)
            return
        from durable.alerts.conditions import look_for  # a process that sends no alert does without these modules
        from durable.inspection.reading import reading

        alias = conf.DATABASE
        rows = AlertState.objects.using(alias).filter(ended_at__isnull=True, kind__in=settings.events)
        alerted = {row.key: row for row in rows.order_by("kind", "id")[:_MOST]}
        with reading(), translation.override(None):  # recorded as a run's input: in English
            found = look_for(frozenset(settings.events), now, alerted.keys())
        holding = {each.key: each for each in found.conditions}
        self._begun = {key: self._begun.get(key, now) for key in holding if key not in alerted}
        for key, since in self._begun.items():
            if holding[key].kind in _IMPATIENT or now - since >= self._patience:
                _begin(holding[key], now, settings)
        gone = [key for key in alerted if key not in holding and key not in found.unknown]
        self._gone = {key: self._gone.get(key, now) for key in gone}
        for key, since in self._gone.items():
            if key in found.silent:
                _end(alerted[key], now, settings, is_silent=True)
            elif now - since >= self._patience:
                _end(alerted[key], now, settings)


def look(now: datetime) -> None:
    """Check, with the memory of this process."""
    _watch.look(now)


_watch = Watch()


def _begin(condition: Condition, now: datetime, settings: AlertSettings) -> None:
    """Record the condition and send its alerts, unless another process has."""
    alias = conf.DATABASE
    with transaction.atomic(using=alias):
        states = AlertState.objects.using(alias).filter(key=condition.key)
        again = states.filter(ended_at__isnull=False)
        values = {"kind": condition.kind, "title": condition.title, "began_at": now, "ended_at": None}
        if not again.update(number=F("number") + 1, **values):
            try:
                with transaction.atomic(using=alias):
                    AlertState.objects.using(alias).create(key=condition.key, **values)
            except IntegrityError:
                return  # another process has just recorded it
        state = states.get()
        _send(state, condition.text, condition.path, settings)


def _end(state: AlertState, now: datetime, settings: AlertSettings, *, is_silent: bool = False) -> None:
    from durable.alerts.conditions import path_of

    alias = conf.DATABASE
    with transaction.atomic(using=alias):
        open_one = AlertState.objects.using(alias).filter(pk=state.pk, number=state.number, ended_at__isnull=True)
        if open_one.update(ended_at=now) and not is_silent:
            state.ended_at = now
            _send(state, "It is over.", path_of(state.key), settings)


def _send(state: AlertState, text: str, path: str, settings: AlertSettings) -> None:
    """Start a run for each target, in the transaction of the caller. `path` is that of a page, or "".

    That of a database that is behind its mark is delivered after the commit instead.
    """
    alert = Alert(
        kind=state.kind,
        key=state.key,
        number=state.number,
        title=state.title,
        text=text,
        url=f"{settings.site}{path}" if settings.site and path else "",
        is_over=state.ended_at is not None,
        began_at=state.began_at.isoformat(),
        ended_at="" if state.ended_at is None else state.ended_at.isoformat(),
    )
    if alert.kind == "database" and not alert.is_over:
        transaction.on_commit(lambda: _deliver_now(alert, settings), using=conf.DATABASE)
    else:
        _start(alert, settings.targets, settings)


def _deliver_now(alert: Alert, settings: AlertSettings) -> None:
    """Deliver the alert in this process; what fails is left to a run, for the time when workers go on."""
    for target in settings.targets:
        try:
            deliver(target.name, asdict(alert))
        except Exception:  # the other targets must be reached, and the chores go on
            logger.exception("the alert %s is not delivered to %s; a run tries again", alert.id, target.name)
            _start(alert, [target], settings)


def _start(alert: Alert, targets: Sequence[Target], settings: AlertSettings) -> None:
    for target in targets:
        name = hashlib.sha256(f"{alert.id}#{target.name}".encode()).hexdigest()[:32]
        using = send_alert.using(id=f"alert-{name}", queue=settings.queue)
        using.start(target.name, asdict(alert))
