"""Workflows by name: registration, late names, clashes, discovery; and public generic values."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from django.apps import AppConfig
from django.apps import apps as django_apps

from durable import BlockResult, Handle, MapChild, MapResult, RaceResult, StepResult
from durable.apps import DurableConfig
from durable.core import registry
from durable.core.limits.workflow_limits import WorkflowLimits
from durable.core.outcomes import WhenExhausted
from durable.core.registry import EndFunction, MessageTypes, Registry, UnknownWorkflowError
from durable.definitions import Input
from tests.support.definitions import Definition, one, other


def test_a_workflow_is_found_by_its_name() -> None:
    found = Registry()
    definition = Definition("shop.fulfil")
    found.register(definition)
    assert found.get("shop.fulfil") is definition
    assert "shop.fulfil" in found
    assert list(found) == [definition]


def test_an_unknown_name_is_reported_with_the_nearest() -> None:
    found = Registry()
    found.register(Definition("shop.fulfil"))
    with pytest.raises(
        UnknownWorkflowError, match=r"no workflow 'shop.fulfill'; did you mean 'shop.fulfil'\?"
    ) as caught:
        found.get("shop.fulfill")
    assert isinstance(caught.value, KeyError)
    assert (caught.value.name, caught.value.nearest) == ("shop.fulfill", ["shop.fulfil"])
    with pytest.raises(UnknownWorkflowError, match="installed apps"):
        found.get("nothing like it")


def test_a_name_is_asked_for_only_when_it_is_needed() -> None:
    class Late:
        function = staticmethod(one)
        queue = "default"
        is_async = False
        mistakes: tuple[type[Exception] | str, ...] | None = None
        limits: WorkflowLimits | None = None
        messages: MessageTypes | None = None
        is_quiet: bool = False
        on_end: EndFunction | None = None
        on: str | None = None
        when_exhausted: WhenExhausted = "fail"
        label: str | None = None

        @property
        def name(self) -> str:
            assert self.label is not None, "asked too early"
            return f"{self.label}.one"

    found, late = Registry(), Late()
    found.register(late)
    late.label = "shop"
    assert found.get("shop.one") is late


def test_two_functions_of_one_name_are_kept_for_the_check() -> None:
    found = Registry()
    first, second = Definition("shop.x", one), Definition("shop.x", other)
    found.register(first)
    found.register(second)
    (clash,) = found.clashes()
    assert (clash.name, clash.definitions) == ("shop.x", (first, second))
    assert found.get("shop.x") is second


def test_a_module_that_is_imported_again_replaces_its_workflows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twice_imported.py").write_text("def flow(ctx): ...")
    monkeypatch.syspath_prepend(tmp_path)
    found = Registry()
    module = importlib.import_module("twice_imported")
    found.register(Definition("twice.flow", module.flow))
    again = Definition("twice.flow", importlib.reload(module).flow)
    found.register(again)
    monkeypatch.delitem(sys.modules, "twice_imported")
    assert found.clashes() == []
    assert found.get("twice.flow") is again


def test_unregistered_is_unknown() -> None:
    found, definition = Registry(), Definition("shop.x")
    found.register(definition)
    found.unregister(definition)
    assert "shop.x" not in found


def test_modules_named_workflows_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "found_app"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "workflows.py").write_text("imported = True")
    monkeypatch.syspath_prepend(tmp_path)
    config = AppConfig.create("found_app")
    monkeypatch.setitem(django_apps.app_configs, "found_app", config)
    durable = django_apps.get_app_config("durable")
    assert isinstance(durable, DurableConfig)
    durable.autodiscover()
    assert sys.modules["found_app.workflows"].imported
    for name in ("found_app.workflows", "found_app"):
        monkeypatch.delitem(sys.modules, name)


def test_where_names_the_line() -> None:
    def here(ctx: object) -> None: ...

    found = registry.source_location(Definition("x", here))
    assert found.startswith(f"{__name__}.{here.__qualname__} ({__file__}:")


# -- public generic values: made with their type arguments, pickled, copied, and never assigned to


MADE: list[tuple[Callable[[], Any], Any]] = [
    (lambda: Handle[str]("order-1"), Handle("order-1")),
    (lambda: Handle[object]("order-1", is_new=True), Handle("order-1")),
    (lambda: StepResult[str](ok=True, value="sent"), StepResult(ok=True, value="sent")),
    (lambda: BlockResult[int](ok=True, value=1), BlockResult(ok=True, value=1)),
    (lambda: RaceResult[int]("one", 1), RaceResult("one", 1)),
    (lambda: MapChild[int](0, "a", "completed", 1), MapChild(0, "a", "completed", 1)),
    (lambda: MapResult[int]([]), MapResult([])),
    (lambda: Input[[int]]("shop.buy", (1,), {}), Input("shop.buy", (1,), {})),
]


@pytest.mark.parametrize(("make", "expected"), MADE)
class TestTypeArguments:
    def test_an_instance_is_made_with_them(self, make: Callable[[], Any], expected: Any) -> None:
        assert make() == expected
        assert type(make()) is type(expected)

    @pytest.mark.parametrize("name", ["id", "ok", "winner", "number", "children", "workflow", "misspelt"])
    def test_nothing_can_be_assigned(self, make: Callable[[], Any], expected: Any, name: str) -> None:
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to {name!r} of {type(expected).__name__}"):
            setattr(make(), name, 1)

    def test_a_copy_and_a_pickle_are_equal(self, make: Callable[[], Any], expected: Any) -> None:
        assert copy.deepcopy(make()) == expected
        assert pickle.loads(pickle.dumps(make())) == expected
