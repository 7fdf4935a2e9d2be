"""A panel of django-debug-toolbar (`durable-django[debug-toolbar]`): what a request has started, sent and steered.

    DEBUG_TOOLBAR_PANELS = [*PANELS_DEFAULTS, "durable.contrib.debug_toolbar.DurablePanel"]

Each verb of the request is a line, with its runs, its time, and what became of the transaction in which it was called:
a start in a transaction that was rolled back has started nothing. A verb that another one has called is not a line.

Owns the panel. Its observer is installed once in a process that has the toolbar, and records while a request is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from debug_toolbar.panels import Panel
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from durable.alerts.conditions import keyed_path
from durable.conf import conf
from durable.instrumentation import observers
from durable.instrumentation.observers import CallEnds, Observer, VerbCall

__all__ = ["DurablePanel"]

#: Runs of a verb, such as `start_many`, that are shown.
MOST_RUNS: Final = 20

_AUTOCOMMIT: Final = _("autocommit")
_COMMITTED: Final = _("atomic, committed")
_WAITS: Final = _("atomic, waits for the commit")
_ROLLED_BACK: Final = _("atomic, rolled back")


@dataclass(slots=True, eq=False)
class _Line:
    """A verb that was called. `connection` is that of the caller's transaction, None outside one."""

    call: VerbCall
    connection: BaseDatabaseWrapper | None
    seconds: float = 0.0
    error: BaseException | None = None
    is_committed: bool = False

    def note_commit(self) -> None:
        """Called when the caller's transaction has committed."""
        self.is_committed = True

    def transaction(self) -> Promise | str:
        """Return what has become of the transaction until now, in words."""
        if self.connection is None:
            return _AUTOCOMMIT
        if self.is_committed:
            return _COMMITTED
        waits = any(each[1] == self.note_commit for each in self.connection.run_on_commit)
        return _WAITS if waits else _ROLLED_BACK

    def shown(self) -> dict[str, Any]:
        """Return the line as the panel keeps it: texts and numbers."""
        ids = self.call.runs[:MOST_RUNS]
        return {
            "verb": self.call.action,
            "about": self.call.about,
            "runs": [{"id": each, "path": keyed_path("durable_run_change", each)} for each in ids],
            "more_runs": len(self.call.runs) - len(ids),
            "transaction": str(self.transaction()),
            "error": "" if self.error is None else f"{type(self.error).__name__}: {self.error}",
            "milliseconds": self.seconds * 1000,
        }


#: The lines of the request that is shown here, None for no such request; and whether a verb is being called.
_lines: ContextVar[list[_Line] | None] = ContextVar("durable_debug_toolbar_lines", default=None)
_is_inside: ContextVar[bool] = ContextVar("durable_debug_toolbar_inside", default=False)


class _Recorder(Observer):
    """An observer of verbs. Of passes, which a view in a test may execute, it observes nothing."""

    def verb_begins(self, call: VerbCall) -> CallEnds | None:
        """Begin the line of a verb, if a request is shown and no other verb calls it."""
        lines = _lines.get()
        if lines is None or _is_inside.get():
            return None
        connection = transaction.get_connection(conf.DATABASE)
        line = _Line(call, connection if connection.in_atomic_block else None)
        if line.connection is not None:
            transaction.on_commit(line.note_commit, using=conf.DATABASE)
        lines.append(line)
        token, began = _is_inside.set(True), perf_counter()

        def ends(error: BaseException | None) -> None:
            line.seconds, line.error = perf_counter() - began, error
            _is_inside.reset(token)

        return ends


_recorder: Final = _Recorder()


class DurablePanel(Panel):
    """The panel: a line for each verb that the request has called."""

    nav_title = _("Durable")
    title = _("Durable: starts, sends and other verbs")
    template = "durable/contrib/debug_toolbar.html"
    is_async = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._own: list[_Line] = []

    @classmethod
    def ready(cls) -> None:
        """Install the observer; further calls do nothing."""
        observers.uninstall(_recorder)
        observers.install(_recorder)

    @property
    def nav_subtitle(self) -> str:
        """The number of verbs and their time."""
        lines: Sequence[Any] = self.get_stats().get("lines", ())  # type: ignore[no-untyped-call]
        milliseconds = sum(each["milliseconds"] for each in lines)
        text = ngettext("%(count)d verb in %(time).2f ms", "%(count)d verbs in %(time).2f ms", len(lines))
        return text % {"count": len(lines), "time": milliseconds}

    def enable_instrumentation(self) -> None:
        """Record the verbs of this request from here on."""
        _lines.set(self._own)

    def disable_instrumentation(self) -> None:
        _lines.set(None)

    def generate_stats(self, request: HttpRequest, response: HttpResponseBase) -> None:
        """Keep what was recorded, with what has become of the transactions by now."""
        self.record_stats({"lines": [each.shown() for each in self._own]})  # type: ignore[no-untyped-call]
