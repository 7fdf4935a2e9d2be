"""Tell of an effect between two operations: stop the run, or log it once for each line of code."""

from __future__ import annotations

import logging
from typing import Final

from durable.core.errors import OutsideStepError
from durable.core.scope import Scope
from durable.guard.modes import mode
from durable.guard.places import Place, place_of_caller

logger = logging.getLogger("durable.guard")

_MAX_TOLD: Final = 10_000
_told: set[tuple[str, int, str]] = set()


def tell(scope: Scope, rule: str, kind: str, action: str, remedy: str) -> None:
    """Tell of an effect of the calling code, unless that is let through, here or by a comment that allows `rule`.

    `kind` tells effects of one line apart. Raises OutsideStepError in the mode "raise".
    """
    if mode() == "off":
        return
    place = place_of_caller(scope, is_statement=rule == "W109")
    if place is None or place.allows(rule):
        return
    tell_error(scope, OutsideStepError(f"{action} ({place})", f"{remedy} ({rule} of the rules)"), place, kind)


def tell_error(scope: Scope, error: Exception, place: Place | None, kind: str) -> None:
    """Stop the run with the error, whatever its code catches, or log it."""
    if mode() == "raise":
        scope.journal.stop(error)
    run = scope.journal.run
    key = (place.path, place.line, kind) if place is not None else (run.workflow, 0, kind)
    if key in _told or len(_told) >= _MAX_TOLD:
        return
    _told.add(key)
    about = {"run_id": run.id, "workflow": run.workflow}
    logger.warning("run %s of %s: %s", run.id, run.workflow, error, extra=about)


def step_call(scope: Scope, name: str, options: str = "") -> str:
    """Return the call of a step as the code of this scope would write it."""
    return f'{"await " if scope.awaited is not None else ""}ctx.step("{name}", function{options})'
