"""Each option of a bulk and of a start is on every surface that has the verb, and none is dropped on its way."""

from __future__ import annotations

import inspect
from argparse import ArgumentParser

import pytest

from durable import Workflow
from durable.admin.start_page import StartForm
from durable.api.bulks import BulkForm
from durable.api.runs import StartForm as RestStartForm
from durable.cli.subcommands import SUBCOMMANDS
from durable.operations import bulk
from durable.operations.start_options import OF_CHILDREN, START_OPTIONS

OPTIONS = [(verb, name) for verb, options in bulk.BULK_OPTIONS.items() for name in options]


def dests(subcommand: str) -> set[str]:
    """The names that the command line gives the options of a subcommand."""
    [found] = [each for each in SUBCOMMANDS if each.name == subcommand]
    parser = ArgumentParser()
    found.configure(parser)
    return {action.dest for action in parser._actions}


def test_the_options_of_a_bulk_are_those_of_its_verbs() -> None:
    for verb in bulk.BULK_VERBS:
        taken = inspect.signature(bulk._VERBS[verb]).parameters.values()
        options = [each.name for each in taken if each.kind is each.KEYWORD_ONLY and each.name != "reason"]
        assert options == list(bulk.BULK_OPTIONS.get(verb, ()))


@pytest.mark.parametrize(("verb", "option"), OPTIONS)
def test_each_surface_has_each_option_of_a_bulk(verb: str, option: str) -> None:
    assert option in dests(verb)
    assert option in BulkForm().fields


def test_the_options_of_a_start_are_those_of_using() -> None:
    taken = [name for name in inspect.signature(Workflow.using).parameters if name != "self"]
    assert sorted(taken) == sorted(each.name for each in (*START_OPTIONS, *OF_CHILDREN))


@pytest.mark.parametrize("option", [each.name for each in START_OPTIONS])
def test_each_surface_has_each_option_of_a_start(option: str) -> None:
    assert option in RestStartForm().fields
    assert {"on_conflict": "new", "tags": "tag"}.get(option, option) in dests("start")
    if option != "on_conflict":  # a form that is sent twice starts one run, so it never refuses its own id
        assert {"id": "run_id"}.get(option, option) in StartForm().fields
