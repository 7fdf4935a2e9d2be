"""Every block of every page is run, in the order of the page, or says on the page why it is not."""

from __future__ import annotations

import re

import pytest
from django.core.management import CommandError

from tests.docs import stages
from tests.docs.pages import PAGES, TUTORIAL, lines_of, page, reason_not_to_run
from tests.docs.playing import play
from tests.docs.shell import Command, commands, fits

#: How many blocks say that they are not run. A new one is a decision, and shows here.
NOT_RUN = {
    "docs/admin.md": 2,
    "docs/guides/coding-agents.md": 3,  # what writes into the project, and settings of pre-commit
    "docs/guides/debug-toolbar.md": 1,  # settings of development
    "docs/guides/deploying.md": 5,  # checks of recorded runs, which the memory of a page's harness has not; a job
    "docs/guides/from-celery.md": 1,
    "docs/guides/from-dbos.md": 1,
    "docs/guides/from-django-ox.md": 1,
    "docs/guides/from-django-q2-and-huey.md": 2,
    "docs/guides/from-procrastinate.md": 1,
    "docs/guides/from-temporal.md": 1,
    "docs/guides/from-viewflow.md": 1,
    "docs/guides/operating.md": 4,  # the settings of a standby and of Sentinels, a copy of the tables, a restore
    "docs/guides/other-projects.md": 3,  # settings of a second database, of a cache and of an error tracker
    "docs/guides/security.md": 1,
    "docs/guides/sentry.md": 1,  # the address is the reader's
    "docs/guides/streams.md": 1,
    "docs/guides/testing.md": 1,  # files of recorded runs
    "docs/rest.md": 1,
    TUTORIAL: 2,
}


def run(name: str) -> None:
    with play(name) as (player, document), stages.of(name, player, document.namespace):
        for example in document.examples():
            example.evaluate()


@pytest.mark.django_db
@pytest.mark.parametrize("name", [each for each in PAGES if each != TUTORIAL])
def test_a_page_runs(name: str) -> None:
    run(name)


def test_blocks_that_are_not_run_are_counted() -> None:
    found = {
        name: count
        for name in PAGES
        if (count := sum(reason_not_to_run(example) is not None for example in page(name).examples()))
    }
    assert found == NOT_RUN


@pytest.mark.parametrize("name", PAGES)
def test_every_fence_of_a_page_is_a_block_that_the_tests_see(name: str) -> None:
    fences = [line for _, line in lines_of(name) if re.match(r"\s*(```|~~~)", line)]
    directives = [line for line in fences if re.match(r"\s*```\{", line)]
    assert len(fences) % 2 == 0
    assert len(list(page(name).examples())) == len(fences) // 2 - len(directives)


class TestTheTestItself:
    """A page that lies has to fail."""

    def test_output_that_differs_is_found(self) -> None:
        assert fits("a run\n... runs", "a run \n17 runs\n")
        assert not fits("a run\n... runs", "a run\n17 walks\n")
        assert not fits("a run", "a run\nand another\n")

    def test_commands_and_their_outputs_are_distinguished(self) -> None:
        block = "$ one --two \\\n    three\nout\n  put\n$ four\n"
        assert list(commands(block)) == [
            Command(line="one --two three", output="out\n  put"),
            Command(line="four", output=None),
        ]

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("```python\nassert 1 == 2\n```\n", "AssertionError"),
            ("```console\n$ python manage.py durable_worker --proceses 2\n```\n", "unrecognized arguments"),
            ("```console\n$ pip install durable[nothing]\n```\n", "no extras"),
            ("```console\n$ rm -rf /\n```\n", "nothing here runs"),
            ("```console\n$ python manage.py durable_worker\nserving\n```\n", "must not show"),
            ('```python\n# settings.py\nDURABLE = {"LAESE": 3}\n```\n', "LEASE"),
            ("```ruby\nputs 1\n```\n", "nothing runs 'ruby'"),
        ],
    )
    def test_a_block_that_is_wrong_fails(
        self, tmp_path_factory: pytest.TempPathFactory, text: str, complaint: str
    ) -> None:
        path = tmp_path_factory.mktemp("pages") / "page.md"
        path.write_text(text)
        with pytest.raises((AssertionError, CommandError)) as failure:
            run(str(path))
        assert complaint in f"{failure.type.__name__} {failure.value}"
