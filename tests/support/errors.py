"""The error with which a run has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from durable import ErrorInfo, Handle, RunInfo
    from durable.testing import Pass


def error_of(ended: Handle[Any] | Pass | RunInfo) -> ErrorInfo:
    """Return the error of a run that has failed, given by its handle or by its last pass."""
    assert ended.state == "failed", ended
    assert ended.error is not None
    return ended.error


def check_failed(ended: Handle[Any] | Pass | RunInfo, kind: str, *messages: str) -> None:
    """Check that a run has failed with an error of the class `kind`, whose message contains each of these texts."""
    error = error_of(ended)
    assert error.type == kind, (error.type, error.traceback)
    for each in messages:
        assert each in error.message, error.message
