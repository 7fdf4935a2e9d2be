"""The tests of a session, executed again with deaths. A plugin of pytest, registered by `--durable-crashes` alone.

Owns how a test is executed again: with pytest's own protocol, so that fixtures of the test are made anew, and those of
its class, module and session stay as they are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import pytest
from _pytest.runner import CallInfo, runtestprotocol

from durable.testing.deaths.effects import noted
from durable.testing.deaths.report import FORMATS, Finding, Report, TestDeaths, findings_of, shortened
from durable.testing.deaths.trials import Point, Trial, watched

MARKER: Final = "no_durable_crashes"
_OUTPUT: Final = "durable_deaths"  # of a process of pytest-xdist, to the one that began the session


class Deaths:
    """Executes each test again that has passed and whose harnesses have committed."""

    def __init__(self, config: pytest.Config) -> None:
        self.report = Report()
        self._config = config
        self._at_most: int = config.getoption("durable_crashes_at_most")
        self._seconds: float = config.getoption("durable_crashes_seconds")
        self._only_warns: bool = config.getoption("durable_crashes_warn")
        given: str | None = config.getoption("durable_crashes_report")
        self._file = None if given is None else config.invocation_params.dir / given
        if self._file is not None and self._file.suffix not in FORMATS:
            raise pytest.UsageError(f"--durable-crashes-report writes {' or '.join(FORMATS)}, not {given}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Execute the test as ever, and then with deaths."""
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        base = Trial()
        # beside another test of the same parent, pytest tears down the test's own fixtures only
        assert item.parent is not None
        sibling = _Sibling.from_parent(item.parent, name=item.name)
        reports = self._execute(item, sibling, base, log=True)
        points = (
            _points(base) if all(each.outcome == "passed" and not hasattr(each, "wasxfail") for each in reports) else []
        )
        if points:
            self._die_at(item, sibling, base, points)
        self._tear_down(item, nextitem)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _execute(self, item: pytest.Item, sibling: pytest.Item, trial: Trial, *, log: bool) -> list[pytest.TestReport]:
        with watched(trial), ExitStack() as stack:
            stack.enter_context(noted())
            return runtestprotocol(item, log=log, nextitem=sibling)

    def _die_at(self, item: pytest.Item, sibling: pytest.Item, base: Trial, points: list[Point]) -> None:
        found = TestDeaths(test=item.nodeid, commits=sum(base.commits()))
        self.report.tests.append(found)
        if why := _why_never(item):
            found.left_out, found.why_left_out = len(points), why
            return
        chosen = _spread(points, self._at_most)
        found.left_out = len(points) - len(chosen)
        found.why_left_out = f"above {self._at_most:,} for a test (--durable-crashes-at-most)" if found.left_out else ""
        seen: dict[Point, list[Finding]] = {}
        ends_at = time.monotonic() + self._seconds
        gone: set[int] = set()  # harnesses of fixtures that outlive the test
        for number, point in enumerate(chosen):
            if point.harness in gone:
                found.not_reached += 1
                continue
            if number and time.monotonic() >= ends_at:
                found.left_out += len(chosen) - number
                found.why_left_out = f"after {self._seconds:g} s for a test (--durable-crashes-seconds)"
                break
            if item.session.shouldstop or item.session.shouldfail:
                found.left_out, found.why_left_out = found.left_out + len(chosen) - number, "as the session stops"
                break
            trial, error = self._die(item, sibling, point)
            if trial.life:
                found.deaths += 1
                seen[point] = list(findings_of(item.nodeid, base, trial, error))
            else:
                found.not_reached += 1
                if len(trial.harnesses) <= point.harness:
                    gone.add(point.harness)
        found.findings = [each for point in points for each in seen.get(point, ())]
        self._tell(found)

    def _die(self, item: pytest.Item, sibling: pytest.Item, point: Point) -> tuple[Trial, str]:
        """Execute the test with a death. Return what was noted, and with what the test has failed, "" if it passed."""
        trial = Trial(death=point)
        kept = len(item._report_sections)
        with _reports_kept(item) as subtests:
            reports = self._execute(item, sibling, trial, log=False)
        del item._report_sections[kept:]
        failed = next((each for each in [*subtests, *reports] if each.failed), None)
        return trial, "" if failed is None else _error(failed)

    def _tear_down(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Tear down what the next test does not share. An error there is one of this test, as ever."""
        if item.session.shouldstop or item.session.shouldfail:
            nextitem = None
        call = CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(nextitem), when="teardown")
        if call.excinfo is not None:
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)

    def _tell(self, found: TestDeaths) -> None:
        """Show the progress in the terminal, which a process of pytest-xdist does not have."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or hasattr(self._config, "workerinput"):
            return
        number = len({each.group() for each in found.findings if each.fails})
        if reporter.verbosity > 0:
            reporter.ensure_newline()
            reporter.write_line(f"    {found.deaths} deaths: {number or 'no'} findings", red=bool(number))
        elif reporter.verbosity == 0:
            reporter.write("D" if number else "d", red=bool(number))

    # -- the session

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a process of pytest-xdist has found."""
        output = getattr(node, "workeroutput", {}).get(_OUTPUT)
        if output is None:
            self.report.lost.append(f"what the process {node.gateway.id} has found: it has died")
            return
        self.report.tests += [TestDeaths.of_json(each) for each in json.loads(output)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Hand the findings over, or write them, and fail the session for them."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput[_OUTPUT] = json.dumps([each.as_json() for each in self.report.tests])
            return
        self.report.tests.sort(key=lambda each: each.test)
        if self._file is not None:
            self.report.write(self._file)
        if exitstatus == pytest.ExitCode.OK and self.report.failing and not self._only_warns:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.ensure_newline()
        terminalreporter.section("durable: deaths")
        for line, is_failing in self.report.lines():
            terminalreporter.write_line(line, red=is_failing)
        if self._file is not None:
            terminalreporter.write_line(f"The report is in {self._file}.")


@contextmanager
def _reports_kept(item: pytest.Item) -> Iterator[list[pytest.TestReport]]:
    """Within the block, collect the reports of subtests, which would be printed and counted as tests."""
    kept: list[pytest.TestReport] = []
    session: Any = item.session
    original = session.gethookproxy

    class Proxy:
        def __init__(self, hooks: Any) -> None:
            self._hooks = hooks

        def __getattr__(self, name: str) -> Any:
            return getattr(self._hooks, name)

        def pytest_runtest_logreport(self, *, report: pytest.TestReport) -> None:
            kept.append(report)

    session.gethookproxy = lambda path: Proxy(original(path))
    try:
        yield kept
    finally:
        del session.gethookproxy


class _Sibling(pytest.Item):
    """Stands for a next test of the same parent. It is never executed."""

    def runtest(self) -> None:
        raise NotImplementedError("it is not a test")


def _points(base: Trial) -> list[Point]:
    return [
        Point(harness=harness, commit=commit, when=when)
        for harness, commits in enumerate(base.commits())
        for commit in range(1, commits + 1)
        for when in ("before", "after")
    ]


def _spread(points: list[Point], at_most: int) -> list[Point]:
    """Return at most so many points, spread over all of them, in an order of which each beginning is spread as well."""
    number = len(points)
    if number > at_most:
        points = [points[index * number // at_most] for index in range(at_most)]
    bits = max(len(points) - 1, 1).bit_length()
    return [points[each] for each in sorted(range(len(points)), key=lambda at: int(f"{at:0{bits}b}"[::-1], 2))]


def _error(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext if crash is None else crash.message
    return shortened(text)


def _why_never(item: pytest.Item) -> str:
    """Return why a test is not executed again; "" if it is."""
    if marker := item.get_closest_marker(MARKER):
        reason = marker.kwargs.get("reason") or (marker.args[0] if marker.args else "")
        return f"as {MARKER} says" + (f": {reason}" if reason else "")
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        return "because Hypothesis chooses other examples each time"
    return ""
