"""`pytest --durable-crashes`: sessions of another project (`tests/testing/dying`), in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.docs.pages import page
from tests.docs.shell import fits

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = Path(__file__).with_name("dying")
CASES: Final = ("requests_cases.py", "other_cases.py", "protocol_cases.py")
PLUGINS: Final = ["-ppytest_django.plugin", "-ppytest_asyncio.plugin", "-ppytest_httpx", "-pdurable.pytest_plugin"]


@dataclass(frozen=True, slots=True)
class Session:
    status: int
    said: str
    report: dict[str, Any]

    def seen(self, workflow: str = "") -> set[tuple[str, str, str]]:
        """What was found: the verdict, the step, the effect."""
        return {
            (each["verdict"], each["step"], each["effect"])
            for each in self.report["findings"]
            if workflow in ("", each["workflow"])
        }

    def about(self, test: str) -> dict[str, Any]:
        return next(each for each in self.report["tests"] if each["test"].endswith(f"::{test}"))


def session(*options: str, report: Path | None = None) -> Session:
    written = [] if report is None else [f"--durable-crashes-report={report}"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-c", str(PROJECT / "pytest.ini"), f"--rootdir={PROJECT}"),
            *(f"--confcutdir={PROJECT}", "--import-mode=importlib", "-pno:cacheprovider", "--nomigrations"),
            *(*PLUGINS, *written, *options),
        ],
        cwd=PROJECT,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.testing.dying.settings",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    is_json = report is not None and report.suffix == ".json" and report.is_file()
    return Session(
        done.returncode, done.stdout + done.stderr, json.loads(report.read_text()) if is_json and report else {}
    )


@pytest.fixture(scope="module")
def all_of_it(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A session of all cases in one process."""
    path = tmp_path_factory.mktemp("deaths") / "reports" / "deaths.json"
    return session("-s", "--durable-crashes", "--durable-crashes-at-most=40", *CASES, report=path)


def fixtures_made(said: str) -> dict[str, int]:
    """How often the fixtures of `protocol_cases` were made, as that module prints it at its end."""
    *_, line = (each for each in said.splitlines() if "fixtures: {" in each)
    made: dict[str, int] = json.loads(line.partition("fixtures: ")[2].replace("'", '"'))
    return made


def test_findings_fail_the_session_whose_tests_have_passed(all_of_it: Session) -> None:
    assert all_of_it.status == 1, all_of_it.said
    assert " failed" not in all_of_it.said.splitlines()[-1]
    assert "durable: deaths" in all_of_it.said
    assert 'dying.requests, step "keyless": POST https://bank.example/requests, twice, without an idempotency key' in (
        all_of_it.said
    )
    assert "after a death before commit 1 of 6, in requests_cases.py::test_responses" in all_of_it.said


def test_requests_count_whichever_library_answers(all_of_it: Session) -> None:
    assert all_of_it.seen("dying.requests") == {
        ("twice", "keyless", "POST https://bank.example/requests"),
        ("twice", "another key", "POST https://bank.example/requests"),
        ("same_key", "keyed", "POST https://bank.example/requests"),
        ("doubtful", "put", "PUT https://bank.example/requests"),
        ("again", "read", ""),
    }
    for library in ("respx", "pytest-httpx"):
        assert ("twice", "keyless", f"POST https://bank.example/{library}") in all_of_it.seen("dying.respx")
        assert ("same_key", "key in the body", f"POST https://bank.example/{library}") in all_of_it.seen("dying.respx")
    assert all_of_it.seen("dying.async") == {("twice", "keyless", "POST https://bank.example/async")}


def test_a_step_that_is_done_once_and_can_be_asked_about_does_nothing_twice(all_of_it: Session) -> None:
    assert {verdict for verdict, *_ in all_of_it.seen("dying.once")} <= {"again"}
    assert all_of_it.about("test_once")["deaths"] == 6


def test_a_request_to_a_real_server_counts_once_however_many_libraries_it_goes_through(all_of_it: Session) -> None:
    seen = {(verdict, step, effect.rpartition("/")[2]) for verdict, step, effect in all_of_it.seen("dying.real")}
    assert seen == {("twice", each, each) for each in ("urllib", "urllib3", "requests", "httpx")}


def test_keys_are_told(all_of_it: Session) -> None:
    keys = {
        each["step"]: each["keys"]
        for each in all_of_it.report["findings"]
        if each["workflow"] == "dying.requests" and each["keys"]
    }
    assert keys["keyless"] == ["none", "none"]
    assert len(set(keys["keyed"])) == 1
    assert len(set(keys["another key"])) == 2
    assert f"with the key {keys['keyed'][0][:12]}… both times" in all_of_it.said


def test_mails_count_unless_they_have_a_key(all_of_it: Session) -> None:
    assert all_of_it.seen("dying.mails") == {
        ("twice", "mail", 'mail "Order 42" to you@example.org'),
        ("same_key", "with a key", 'mail "Paid" to you@example.org'),
    }


def test_rows_count_unless_they_go_with_the_record_or_are_the_same(all_of_it: Session) -> None:
    assert {each for each in all_of_it.seen("dying.rows") if each[0] != "again"} == {
        ("twice", "insert", "a row inserted into dying_payment"),
        ("twice", "insert elsewhere", "a row inserted into dying_payment"),
        ("twice", "take", "stock of dying_item changed by an amount"),
        ("twice", "take and save", "dying_item updated with other numbers"),
    }
    again = {step for verdict, step, _ in all_of_it.seen("dying.rows") if verdict == "again"}
    assert again == {"insert with a key", "insert atomically", "take atomically", "pay 🚀%2F%0A`x`", "take once"}
    mends = {each["step"]: each["mend"] for each in all_of_it.report["findings"]}
    assert mends["insert"].startswith("atomic=True")
    assert "atomic=True does not reach them" in mends["insert elsewhere"]


def test_starts_of_runs_count_unless_they_have_an_id(all_of_it: Session) -> None:
    assert all_of_it.seen("dying.starts") == {
        ("twice", "start", "a start of dying.started"),
        ("again", "start under an id", ""),
    }


def test_mocks_count_by_their_names(all_of_it: Session) -> None:
    assert all_of_it.seen("dying.mocks") == {
        ("stand_in", "stand-in", ""),
        ("twice", "post", "a call of the mock post"),
        ("same_key", "post with a key", "a call of the mock post"),
        ("doubtful", "rate", "a call of the mock rate"),
    }


def test_rollback_handlers_retries_and_code_between_steps_count(all_of_it: Session) -> None:
    assert ("twice", "book (rollback)", "a call of the mock post") in all_of_it.seen("dying.saga")
    assert all_of_it.seen("dying.retries") == {("same_key", "post", "a call of the mock post")}
    between = {each for each in all_of_it.seen("dying.between") if each[0] != "again"}
    assert between == {("between", "", 'mail "Between" to b@example.org')}


def test_a_run_that_fails_after_a_death_is_a_finding(all_of_it: Session) -> None:
    (found,) = [each for each in all_of_it.report["findings"] if each["verdict"] == "ended"]
    assert (found["workflow"], found["fails"]) == ("dying.fails", True)
    assert found["effect"].startswith("the run is failed instead of completed: StepExhaustedError")


def test_a_test_that_fails_after_a_death_is_told_and_fails_nothing(all_of_it: Session) -> None:
    failed = {
        each["tests"][0].rpartition("::")[2]: each
        for each in all_of_it.report["findings"]
        if each["verdict"] == "failed"
    }
    assert set(failed) == {
        "test_rows_in_a_test_case",
        "test_a_run_that_fails_only_after_a_death",
        "test_mails",
        "test_mocks",
        "test_that_counts_calls",
    }
    assert failed["test_that_counts_calls"]["effect"] == "AssertionError: called once"
    assert not any(each["fails"] for each in failed.values())
    assert "test_mails: assert 3 == 2, after a death before commit 1 of 3 and 1 other\n" in all_of_it.said


def test_without_the_option_each_test_runs_once_and_with_it_only_its_own_fixtures_are_made_anew(
    all_of_it: Session,
) -> None:
    plain = session("-s", *CASES)
    assert plain.status == 0, plain.said
    assert "deaths" not in plain.said
    once, again = fixtures_made(plain.said), fixtures_made(all_of_it.said)
    assert once["function"] == 2
    deaths = sum(all_of_it.about(f"test_fixtures[{each}]")["deaths"] for each in ("one", "two"))
    assert again == {**once, "function": 2 + deaths}


@pytest.mark.parametrize(
    ("test", "commits"),
    [
        ("test_fixtures[one]", 3),
        ("test_async", 3),
        ("test_sync", 6),
        ("test_isolated", 3),
        ("test_it", 3),
        ("test_several_runs_and_harnesses", 10),
        ("test_that_leaves_a_thread", 3),
        ("test_slow", 3),
    ],
)
def test_each_commit_has_two_deaths(all_of_it: Session, test: str, commits: int) -> None:
    found = all_of_it.about(test)
    assert (found["commits"], found["deaths"]) == (commits, 2 * commits)
    assert (found["left_out"], found["not_reached"]) == (0, 0)


def test_what_is_left_out_is_told(all_of_it: Session) -> None:
    many = all_of_it.about("test_many_commits")
    assert (many["commits"], many["deaths"], many["left_out"]) == (501, 40, 962)
    assert "test_many_commits: 962 deaths, above 40 for a test (--durable-crashes-at-most)" in all_of_it.said
    lasting = all_of_it.about("test_a_harness_of_the_module")
    assert (lasting["deaths"], lasting["not_reached"]) == (0, 6)
    marked = all_of_it.about("test_marked")
    assert (marked["deaths"], marked["left_out"]) == (0, 6)
    assert "as no_durable_crashes says: it cannot be executed twice" in all_of_it.said
    assert all_of_it.about("test_hypothesis")["deaths"] == 0
    assert "because Hypothesis chooses other examples each time" in all_of_it.said


def test_tests_that_have_not_passed_or_commit_nothing_are_left_alone(all_of_it: Session) -> None:
    names = {each["test"].rpartition("::")[2] for each in all_of_it.report["tests"]}
    assert names.isdisjoint({"test_xfail", "test_skip", "test_without_a_harness"})


def test_several_processes_find_the_same(all_of_it: Session, tmp_path: Path) -> None:
    names = ("other_cases.py", "protocol_cases.py")
    found = session(
        *("-pxdist.plugin", "-n2", "--dist=loadfile", "--durable-crashes", "--durable-crashes-at-most=40", *names),
        report=tmp_path / "deaths.json",
    )
    assert found.status == 1, found.said
    assert found.seen() == {
        (each["verdict"], each["step"], each["effect"])
        for each in all_of_it.report["findings"]
        if any("requests_cases" not in test for test in each["tests"])
    }
    assert found.said.count("durable: deaths") == 1


def test_a_process_that_dies_is_told(tmp_path: Path) -> None:
    (tmp_path / "dies_cases.py").write_text("import os\n\ndef test_dies():\n    os._exit(3)\n", encoding="utf-8")
    found = session(
        "-pxdist.plugin", "-n1", "--max-worker-restart=0", "--durable-crashes", str(tmp_path / "dies_cases.py")
    )
    assert "what the process gw0 has found: it has died" in found.said


def test_green_tests_pass(tmp_path: Path) -> None:
    found = session("--durable-crashes", "green_cases.py", report=tmp_path / "deaths.json")
    assert found.status == 0, found.said
    assert "2 tests were executed again with 16 deaths" in found.said
    assert "Nothing that was seen is done twice without the same key." in found.said
    assert found.seen() == {("same_key", "charge", "POST https://bank.example/charges"), ("again", "mark paid", "")}


def test_findings_may_only_warn_and_the_report_may_be_a_page(tmp_path: Path) -> None:
    page = tmp_path / "deaths.md"
    only = ("other_cases.py", "-k", "test_mails or test_rows_in")
    found = session("--durable-crashes", "--durable-crashes-warn", *only, report=page)
    assert found.status == 0, found.said
    text = page.read_text(encoding="utf-8")
    assert '## dying.mails, step "mail": mail "Order 42" to you@example.org, twice\n' in text
    assert "Fix: once=True with verify=" in text
    assert r"pay 🚀%2F%0A\`x\`" in text


def test_the_time_of_a_test_is_limited(tmp_path: Path) -> None:
    options = ("--durable-crashes", "--durable-crashes-seconds=0.4", "protocol_cases.py", "-k", "test_slow")
    found = session(*options, report=tmp_path / "deaths.json").about("test_slow")
    assert 0 < found["deaths"] < 6
    assert found["deaths"] + found["left_out"] == 6
    assert found["why_left_out"] == "after 0.4 s for a test (--durable-crashes-seconds)"


def test_the_guide_shows_what_its_program_prints(tmp_path: Path) -> None:
    blocks = [each.parsed for each in page("docs/guides/testing.md").examples()]
    (program,) = [each for each in blocks if each.startswith("# shop/test_deaths.py")]
    (shown,) = [each for each in blocks if "durable: deaths" in each]
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/test_deaths.py").write_text(program, encoding="utf-8")
    found = session("--durable-crashes", f"--rootdir={tmp_path}", str(tmp_path / "shop/test_deaths.py"))
    assert found.status == 1
    lines = found.said.splitlines()
    begin = next(number for number, line in enumerate(lines) if "durable: deaths" in line)
    printed = "\n".join(line.replace("../", "") for line in lines[begin:-1])
    assert fits(shown, printed), printed


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--durable-crashes", "--durable-crashes-report=deaths.txt"], "writes .json or .md, not deaths.txt"),
        (["--durable-crashes-report=deaths.md"], "give both"),
        (["--durable-crashes", "--durable-crashes-at-most=0"], "expected a number above 0, not 0"),
        (["--durable-crashes", "--durable-crashes-seconds=soon"], "invalid float value"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[str], says: str) -> None:
    found = session(*options, "green_cases.py")
    assert found.status == 4, found.said
    assert says in found.said


def test_settings_are_needed(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-pdurable.pytest_plugin", "--durable-crashes"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 4, done.stderr
    assert "--durable-crashes needs Django's settings" in done.stderr
