"""Rate limits: scopes for the host's `DEFAULT_THROTTLE_RATES`.

The scopes are `durable-read`, `durable-write` and `durable-stream`. A scope without a rate is not throttled.
"""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.throttling import ScopedRateThrottle

READ = "durable-read"
WRITE = "durable-write"
STREAM = "durable-stream"


class Throttle(ScopedRateThrottle):
    """A scope for each view, another one for its POST."""

    def allow_request(self, request: Request, view: Any) -> bool:
        """Return whether the request is within the rate of its scope."""
        self.scope = WRITE if request.method == "POST" else view.throttle_scope
        rates: Any = api_settings.DEFAULT_THROTTLE_RATES
        rate = rates.get(self.scope)
        if rate is None:
            return True
        self.rate = rate
        self.num_requests, self.duration = self.parse_rate(rate)
        return super(ScopedRateThrottle, self).allow_request(request, view)
