"""What is shown of failures: of joins and races, before a recovery, and of compensations."""

from typing import Any

import pytest
from django.test import Client

from durable import get_run
from durable.inspection import build_timeline, explain_fully, history_tree, read_entry_detail
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.test_pages import text_of, url


@pytest.fixture(autouse=True)
def _switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "SWITCH", {"broken": True, "rollback_broken": False})


def statuses(run_id: str, **options: Any) -> dict[str, str]:
    return {node.location: node.status for node in history_tree(run_id, **options).nodes}


class TestAFailedJoin:
    def test_its_status_is_the_outcome_that_it_handed_on(self, stage: Stage) -> None:
        stage.start(flows.album, id="run")
        [images] = history_tree("run").roots
        assert (images.status, images.note) == ("failed", "1 of 30 branches failed")
        ends = [branch.status for branch in images.children]
        assert (ends.count("completed"), ends[28]) == (29, "failed")
        assert statuses("run")["images/image 28/sides"] == "failed"
        flows.SWITCH["broken"] = False
        get_run("run").recover()
        stage.settle("run")
        assert set(statuses("run").values()) == {"completed"}

    def test_only_what_failed_leaves_its_completed_branches_out(self, stage: Stage) -> None:
        stage.start(flows.album, id="run")
        assert statuses("run", only_failed=True) == {
            "images": "failed",
            "images/image 28": "failed",
            "images/image 28/sides": "failed",
            "images/image 28/sides/front": "failed",
            "images/image 28/sides/front/watermark": "exhausted",
        }
        stage.start(flows.broken_branch, id="no-entry")
        assert statuses("no-entry", only_failed=True) == {"ship": "failed", "ship/label": "failed"}

    def test_the_timeline_draws_the_failing_lane_first(self, stage: Stage) -> None:
        run = stage.start(flows.album, id="run")
        drawn = build_timeline(run, history_tree("run").nodes, stage.now)
        assert drawn.lanes[0].title == "images/image 28/sides/front"
        assert [shape.kind for shape in drawn.lanes[0].shapes] == ["failed"]
        assert drawn.left_out == 6

    def test_the_explanation_leads_to_the_innermost_step_that_failed(self, stage: Stage, operator: Client) -> None:
        run = stage.start(flows.album, id="run")
        said = explain_fully(run, stage.now)
        assert said.location == "images/image 28/sides/front/watermark"
        assert said.headline.startswith('Failed at "images/image 28/sides/front/watermark" now')
        assert "no such image" in said.headline
        run = stage.start(flows.broken_branch, id="no-entry")
        assert explain_fully(run, stage.now).location == "ship"

    def test_its_page_tells_the_errors_of_its_branches(self, stage: Stage, operator: Client) -> None:
        run = stage.start(flows.album, id="run")
        detail = read_entry_detail(run, "images", with_payloads=True)
        assert detail is not None
        assert detail.status == "failed"
        first, second = detail.branches[:2]
        assert (first.name, first.status, first.location) == (
            "image 28",
            "failed",
            "images/image 28/sides/front/watermark",
        )
        assert first.error is not None
        assert "no such image" in first.error.message
        assert (second.name, second.status, second.error) == ("image 0", "completed", None)
        page = text_of(operator.get(url("step", "run"), {"at": "images"}))
        assert "no such image" in page
        assert "at=images%2Fimage%2028%2Fsides%2Ffront%2Fwatermark" in page

    def test_a_failure_that_the_code_has_caught_is_said_to_be(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.caught_join, id="run")
        nodes = {node.location: node for node in history_tree("run").nodes}
        assert {location for location, node in nodes.items() if node.is_caught} == {
            "careful/ship",
            "careful/ship/label",
            "careful/ship/label/buy",
        }
        assert "durable-caught" in text_of(operator.get(url("change", "run")))
        stage.start(flows.album, id="fatal")
        assert not any(node.is_caught for node in history_tree("fatal").nodes)
