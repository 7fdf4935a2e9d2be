"""Redaction hooks: one that hides everything, one that is broken."""

from typing import Any

__all__ = ["broken", "hide"]


def hide(workflow: str, field: str, value: Any) -> Any:
    assert workflow
    assert field
    return "hidden"


def broken(workflow: str, field: str, value: Any) -> Any:
    raise RuntimeError("out of order")
