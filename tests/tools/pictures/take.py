"""Take the pictures of the documentation, and its film: `uv run python -m tests.tools.pictures.take`.

Starts PostgreSQL, Redis, a worker and a development server of its own, fills the database, and writes to docs/images.
`CHROMIUM` names the browser's program, if it is not Playwright's own.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.error import URLError
from urllib.request import urlopen

from PIL import Image

from project.servers import EmbeddedPostgres, EmbeddedRedis, free_port
from tests.tools.pictures.film import shoot_incident

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT: Final = Path(__file__).resolve().parents[3]
IMAGES: Final = ROOT / "docs" / "images"
WIDE: Final = {"width": 1280, "height": 960}
TELEPHONE: Final = {"width": 390, "height": 844}
PASSWORD: Final = "correct horse"  # of fill.py
STUCK: Final = "import django; django.setup(); from tests.tools.pictures import workflows as w; w.import_catalogue.using(id='import-7').start('acme')"
_PATIENCE: Final = 60.0  # seconds
_COLOURS: Final = 256


@contextmanager
def _running(*command: str, environment: Mapping[str, str]) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, *command], env=environment, cwd=ROOT)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # one of its steps hangs, as it should
            process.kill()
            process.wait()


def _await(address: str) -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            with urlopen(address, timeout=5):  # this process's own server
                return
        except URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def take() -> None:
    """Start what is needed, take the pictures, and end it again."""
    from playwright.sync_api import sync_playwright

    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(fsync=False))
        redis = stack.enter_context(EmbeddedRedis())
        environment = {
            **os.environ,
            "DATABASE_URL": postgres.url,
            "REDIS_URL": redis.url,
            "DEBUG": "1",
            "DURABLE_BUILD": "7f3a",
            "DJANGO_SETTINGS_MODULE": "tests.tools.pictures.settings",
        }
        subprocess.run([sys.executable, "-m", "tests.tools.pictures.fill"], env=environment, cwd=ROOT, check=True)
        worker = ("manage.py", "durable_worker", "--concurrency", "4")
        stack.enter_context(_running(*worker, environment=environment))
        subprocess.run([sys.executable, "-c", STUCK], env=environment, cwd=ROOT, check=True)
        address = f"127.0.0.1:{free_port()}"
        stack.enter_context(_running("manage.py", "runserver", "--noreload", address, environment=environment))
        _await(f"http://{address}/admin/login/")
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
        page = _pictures(browser, f"http://{address}")
        shoot_incident(page, f"http://{address}", IMAGES / "incident.webp")
        browser.close()


def _pictures(browser: Browser, site: str) -> Page:
    """Take the pictures; return the page, in which a user is logged in."""
    page = browser.new_page(viewport=WIDE, color_scheme="light")  # type: ignore[arg-type]  # a dict like it
    page.goto(f"{site}/admin/login/?next=/admin/durable/")
    page.fill("#id_username", "ada")
    page.fill("#id_password", PASSWORD)
    page.click("input[type=submit]")
    page.get_by_text("busy", exact=True).first.wait_for(timeout=60_000)
    _shoot(page, "overview", is_whole=True)
    [cause] = re.findall(
        r"/causes/\w+/", page.get_by_role("link", name="GatewayTimeout").first.get_attribute("href") or ""
    )
    page.goto(f"{site}/admin/durable/run{cause}")
    _shoot(page, "cause", is_whole=True)
    page.goto(f"{site}/admin/durable/run/?workflow=acme.order")
    _shoot(page, "list")
    page.goto(f"{site}/admin/durable/run/?state=failed&q=ConnectionError")
    failed = f"{site}{page.locator('#result_list tbody th a').first.get_attribute('href')}"
    page.emulate_media(color_scheme="dark")
    page.goto(failed)
    _shoot(page, "run", is_whole=True)
    page.set_viewport_size(TELEPHONE)  # type: ignore[arg-type]  # a dict like it
    page.emulate_media(color_scheme="light")
    page.goto(f"{failed.removesuffix('change/')}replay/?at=charge+card")
    _shoot(page, "replay", is_whole=True)
    return page


def _shoot(page: Page, name: str, *, is_whole: bool = False) -> None:
    page.wait_for_load_state("networkidle")
    picture = Image.open(io.BytesIO(page.screenshot(full_page=is_whole, animations="disabled"))).convert("RGB")
    # A palette makes the file a third as large.
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    take()
