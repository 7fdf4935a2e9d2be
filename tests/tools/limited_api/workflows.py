"""The runs that call the API."""

from __future__ import annotations

import urllib.request
from urllib.parse import quote

from durable import Context, workflow


def call(url: str, tenant: str, run_id: str) -> str:
    """One request."""
    with urllib.request.urlopen(f"{url}/{quote(tenant)}/{quote(run_id)}", timeout=60) as answer:
        return str(answer.read().decode())


@workflow(name="limited_api.customer")
def customer(ctx: Context, url: str, tenant: str) -> str:
    """Call the API once, when its rate has room and the tenant has a free slot."""
    return ctx.step(
        "call",
        call,
        url,
        tenant,
        ctx.run_id,
        rate="api",
        limit=f"api-tenant/{tenant}",
        max_retries=50,
        retry_backoff_max=1,
    )
