"""Every page of the admin in a real browser: no barriers in light and dark, in forced colours, on a telephone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from durable.admin.run_parts import PART_NAMES
from tests.admin import flows
from tests.admin.addresses import PAGES, a_hung_step, make_site
from tests.admin.conftest import Stage
from tests.admin.pages import url
from tests.support.addresses import path_of
from tests.support.browsers import CONTRAST, RULES, barriers, show_as

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

WIDE, TELEPHONE = {"width": 1440, "height": 1000}, {"width": 390, "height": 844}
#: A colour scheme, forced colours, a size, and what axe looks at: colours do not change the structure of a page.
LOOKS = {
    "light": ("light", "none", WIDE, RULES),
    "dark": ("dark", "none", WIDE, CONTRAST),
    "forced": ("light", "active", WIDE, CONTRAST),
    "telephone": ("dark", "none", TELEPHONE, RULES),
}
#: Parts of pages, downloads, lists of names and redirections.
NO_PAGES = {
    *("names", "overview", "bulk_live", "lead", "live", "stream"),
    *("export", "raw", "bulk", "save_view", "delete_view"),
}


def test_barriers_are_found_with_each_place_and_only_where_the_test_looks(page: Page) -> None:
    pale = '<p style="color: #bbb; background: #fff">pale</p>'
    page.set_content(
        f'{pale}<div id="content">{pale}<img src="data:,"><p>{pale}</p><div id="toolbar">{pale}</div></div>'
    )
    found = {each["id"]: (each["impact"], len(each["nodes"])) for each in barriers(page, but="#toolbar")}
    assert found == {"color-contrast": ("serious", 2), "image-alt": ("critical", 1)}
    assert [each["id"] for each in barriers(page, ("color-contrast",))] == ["color-contrast"]
    everywhere = {each["id"]: len(each["nodes"]) for each in barriers(page, within=None)}
    assert everywhere["color-contrast"] == 4
    assert "document-title" in everywhere


def test_no_page_has_barriers(sign_in: Callable[..., Page], stage: Stage, complaints: list[str]) -> None:
    flows.SWITCH["broken"] = True
    site = make_site(stage)
    a_hung_step(stage)
    paths = [path_of(f"admin:durable_run_{name}", each, site) for name, each in PAGES.items() if name not in NO_PAGES]
    change = path_of("admin:durable_run_change", PAGES["change"], site)
    paths += [f"{change}?part={name}" for name in PART_NAMES]
    paths += [url("change", "hung"), f"{url('running_step', 'hung')}?at=charge", url("act", "hung", "abandon")]
    paths.append(f"{url('payload', 'run')}?of=input&find=1")
    paths += ["/admin/", "/admin/durable/", "/admin/durable/operatoraction/"]
    log = [f"/admin/durable/operatoraction/{site['{action}']}/{page}/" for page in ("change", "history")]
    paths += [*log, f"{url('bulk')}?verb=recover&all=on&filter=%3Fstate%3Dfailed&first=1"]
    page = sign_in(is_superuser=True)
    found: dict[str, list[str]] = {}
    # the search of the log is Django's own
    for path in paths:
        answer = page.goto(path)
        if answer is not None and answer.ok:  # a question that is none is not found
            for said in complaints:
                found.setdefault(said, []).append(path)
        page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        for look, (scheme, forced, size, rules) in LOOKS.items():
            show_as(page, scheme=scheme, forced=forced, size=size)
            for each in barriers(page, rules, but="#toolbar"):
                found.setdefault(f"{each['id']}: {each['nodes'][0]['html'][:200]}", []).append(f"{look}: {path}")
            if page.evaluate("document.documentElement.scrollWidth") > size["width"]:
                found.setdefault("wider than the screen", []).append(f"{look}: {path}")
        complaints.clear()  # of the styles that axe tries to set
    assert found == {}
