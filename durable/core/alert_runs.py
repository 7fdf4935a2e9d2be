"""The runs that send alerts, as others recognize them: the name of their workflow."""

from __future__ import annotations

from typing import Final

#: The workflow whose runs send alerts, one for each alert and target.
ALERT: Final = "durable.alert"
