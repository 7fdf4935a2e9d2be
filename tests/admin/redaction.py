"""Redaction hooks: one that hides everything, one that is broken."""

import re
from typing import Any


def hide(workflow: str, field: str, value: Any) -> Any:
    assert workflow
    assert field
    return "hidden"


def broken(workflow: str, field: str, value: Any) -> Any:
    raise RuntimeError("out of order")


def hide_cards(workflow: str, field: str, value: Any) -> Any:
    """Hide in texts each word that begins with SECRET, as a project hides numbers of cards."""
    return re.sub(r"SECRET\w+", "(hidden)", value) if isinstance(value, str) else value


def hide_ibans(workflow: str, field: str, value: Any) -> Any:
    """Hide what stands under the key "iban", in dicts and lists."""
    if isinstance(value, dict):
        return {key: "(hidden)" if key == "iban" else hide_ibans(workflow, field, each) for key, each in value.items()}
    if isinstance(value, list):
        return [hide_ibans(workflow, field, each) for each in value]
    return value


def keep(workflow: str, field: str, value: Any) -> Any:
    """Hide nothing."""
    return value


#: A queue whose name has what separates and escapes in locations.
QUEUE = "orders/100%25"


def hide_queue(workflow: str, field: str, value: Any) -> Any:
    """Hide the messages of one queue."""
    return "hidden" if field == f"message:{QUEUE}" else value
