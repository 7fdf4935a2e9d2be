"""A search by error reads the beginning of each error, however long errors are."""

import random

import pytest
from django.db import connection
from pytest_django import Settings

from durable.core.errors import ErrorInfo
from durable.inspection.payloads import SEARCHED
from durable.inspection.runs import RunCriteria, list_runs
from durable.models import Run
from tests.admin import flows
from tests.admin.conftest import Stage

RUNS = 20
LONG = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def found(text: str) -> list[str]:
    return [run.id for run in list_runs(RunCriteria(error_text=text)).runs]


class TestWhatIsFound:
    @pytest.fixture(autouse=True)
    def _failed(self, stage: Stage) -> None:
        for id, error in {
            "plain": ErrorInfo("ValueError", "no answer", "Traceback: in the bank"),
            "long": ErrorInfo("KeyError", f"beginning {'x' * SEARCHED} end", "Traceback"),
            "quoted": ErrorInfo("OSError", 'says "é\\n": 1', "Traceback"),
        }.items():
            stage.start(flows.quick, id=id)
            Run.objects.filter(pk=id).update(error=error)

    def test_types_and_messages_whatever_the_case(self) -> None:
        assert (found("valueerror"), found("NO ANSWER"), found('SAYS "é\\n"')) == (["plain"], ["plain"], ["quoted"])

    def test_no_traceback_and_no_end_of_a_long_message(self) -> None:
        assert (found("in the bank"), found("traceback"), found("beginning"), found(" end")) == ([], [], ["long"], [])

    def test_nothing_of_how_the_column_is_written(self) -> None:
        assert found('{"type": "') == []


@pytest.mark.skipif(connection.vendor != "postgresql", reason="of how PostgreSQL keeps long text")
@pytest.mark.parametrize("hook", ["", "tests.admin.redaction.keep"])
def test_postgresql_fetches_no_more_of_longer_errors(stage: Stage, settings: Settings, hook: str) -> None:
    settings.DURABLE = {**settings.DURABLE, "REDACT": hook}
    fetched = []
    for length in (20_000, 200_000):
        fill(stage, f"of-{length}", length)
        before = chunks_fetched()
        assert list_runs(RunCriteria(error_text="nothing is like this", workflow=f"of-{length}")).runs == []
        fetched.append(chunks_fetched() - before)
    if hook:  # the hook is given whole messages, of few runs: tests.admin.test_redaction
        assert fetched[0] > 0
    else:
        assert fetched[0] == fetched[1] <= RUNS * 12


def fill(stage: Stage, workflow: str, length: int) -> None:
    """Failed runs whose error has a message of so many characters, which do not compress well."""
    chance = random.Random(7)
    template = stage.start(flows.quick, id=workflow)
    for number in range(RUNS):
        template.pk, template.workflow = f"{workflow}-{number}", workflow
        template.error = ErrorInfo("ValueError", "".join(chance.choices(LONG, k=length)), "")
        template.save(force_insert=True)


def chunks_fetched() -> int:
    """How many chunks of long columns this transaction has read of runs."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_all_tables "
            "WHERE relid = (SELECT reltoastrelid FROM pg_class WHERE oid = 'durable_run'::regclass)"
        )
        [(number,)] = cursor.fetchall()
    return int(number)
