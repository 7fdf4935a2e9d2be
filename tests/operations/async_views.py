"""Addresses of one async view that waits for a run, for a server of the tests' own."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.urls import URLPattern, path

from durable import aget_run


async def wait(request: HttpRequest, run_id: str) -> JsonResponse:
    run = await aget_run(run_id)
    return JsonResponse({"output": await run.aresult(timeout=60)})


urlpatterns: list[URLPattern] = [path("wait/<str:run_id>", wait)]
