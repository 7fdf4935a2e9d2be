"""Classes and rollback handlers that moved: what old and new code make of the records of both."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import DatabaseError, connection, migrations, transaction
from django.db.migrations.writer import MigrationWriter
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from durable import Context, CriticalError
from durable.codec import JsonCodec
from durable.core.errors import PayloadError
from durable.core.names import recorded_names
from durable.core.names.recorded_names import Move, Moves, recorded_name, resolve_name
from durable.crypto import FernetCodec
from durable.migrations import MoveClass, MoveHandler
from durable.models import Entry, MovedName, Run
from durable.renames import classes_looking
from durable.renames.rewriting import RenameRefused
from durable.replay_check.findings import FindingKind
from tests.cli.conftest import Shell, shell
from tests.renames.conftest import go_on
from tests.renames.moving import SHAPES, apply, modules, unapply
from tests.replay_check.conftest import NAME, Deploys

__all__ = ["shell"]

NAMES = ("Size", "Flags", "Point", "Model", "Order", "DeclinedError")
MOVES = [MoveClass(f"moving_shop.models.{each}", f"moving_shop.orders.{each}") for each in NAMES]
MOVE = MOVES[4]
HANDLER = MoveHandler("moving_shop.models.refund", "moving_shop.orders.refund")

codec = JsonCodec()


def values(at: ModuleType) -> list[Any]:
    line = at.Order.Line("a")
    order = at.Order(7, (line,))
    return [
        order,
        line,
        at.Size.BIG,
        at.Flags.A | at.Flags.B,
        at.Point(3),
        at.Model(size=at.Size.BIG),
        [order, [order]],
        {"order": order, "deep": {"lines": (line,)}},
        {order: order, at.Size.BIG: 1},
        {order, line},
        at.Order(8, (order, {"point": at.Point(1)})),
    ]


def put_in_force(*moves: MoveClass | MoveHandler) -> None:
    recorded_names.put_in_force([each.move for each in moves])


@pytest.mark.parametrize("number", range(11))
def test_new_code_reads_old_records_and_old_code_new_ones(number: int) -> None:
    with modules(models=SHAPES) as old:
        recorded = codec.encode(values(old["models"])[number])
    with modules(orders=SHAPES) as new:
        with pytest.raises(PayloadError, match="MoveClass"):
            codec.decode(recorded)
        put_in_force(*MOVES)
        assert codec.decode(recorded) == values(new["orders"])[number]
        written = codec.encode(values(new["orders"])[number])
        assert "moving_shop.models" not in written
    with modules(models=SHAPES) as back:
        assert codec.decode(written) == values(back["models"])[number]
        assert codec.decode(recorded) == values(back["models"])[number]
        assert codec.encode(values(back["models"])[number]) == recorded
    with modules(orders=SHAPES, models="from moving_shop.orders import *") as both:  # an alias was left
        assert codec.decode(recorded) == codec.decode(written) == values(both["orders"])[number]


@pytest.mark.parametrize("move", recorded_names.OWN, ids=lambda each: each.new)
def test_records_of_durables_own_classes_are_read_where_these_have_moved(move: Move) -> None:
    kind: Any = resolve_name(move.new)
    needed = [each.name for each in dataclasses.fields(kind) if each.default is dataclasses.MISSING]
    value = kind(**dict.fromkeys(needed))  # a class may check its fields: the others keep their defaults
    old = codec.encode(value).replace(move.new, move.old)
    assert move.old in old
    assert codec.decode(old) == value
    put_in_force(*MOVES)
    assert codec.decode(old) == value


def test_text_that_only_looks_like_the_path_stays(deploys: Deploys) -> None:
    look_alike = {"path": "moving_shop.models:Order", "moving_shop.models:Order": ["moving_shop.models.Order"]}
    text = codec.encode(look_alike)
    put_in_force(*MOVES)
    assert codec.decode(text) == look_alike
    assert codec.encode(look_alike) == text


def test_a_class_that_was_nested_and_one_that_moves_twice_and_back() -> None:
    with modules(models=SHAPES) as old:
        recorded = codec.encode(old["models"].Order.Line("a"))
    out = MoveClass("moving_shop.orders:Order.Line", "moving_shop.lines.Line")
    put_in_force(MOVE, out)
    line = "import dataclasses\n@dataclasses.dataclass\nclass Line:\n    sku: str\n"
    with modules(orders=SHAPES.replace("class Line", "class Other"), lines=line) as new:
        assert codec.decode(recorded) == new["lines"].Line("a")
        written = codec.encode(new["lines"].Line("a"))
    with modules(models=SHAPES) as back:
        assert codec.decode(written) == back["models"].Order.Line("a")
    put_in_force(MOVE, out, MoveClass("moving_shop.lines.Line", "moving_shop.models:Order.Line"))
    with modules(models=SHAPES) as back:
        assert codec.decode(written) == codec.decode(recorded) == back["models"].Order.Line("a")


def test_what_took_the_old_name_hides_nothing_if_it_is_of_another_kind() -> None:
    with modules(models=SHAPES) as old:
        recorded = codec.encode(old["models"].Order(7))
    put_in_force(MOVE)
    with modules(orders=SHAPES, models="class Order:\n    pass\n") as new:
        assert codec.decode(recorded) == new["orders"].Order(7)


def test_the_code_goes_before_the_fact() -> None:
    put_in_force(MOVE)
    with modules(models=SHAPES, orders=SHAPES) as both:
        text = codec.encode(both["models"].Order(7))
        assert type(codec.decode(text)) is both["models"].Order


# -- runs


class Shop:
    """A workflow over the classes of the code at hand."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.caught: list[type] = []

    def order(self, at: ModuleType) -> Callable[..., Any]:
        def made(number: int) -> Any:
            return {"orders": [at.Order(number, (at.Order.Line("a"),))]}

        def declined() -> None:
            raise at.DeclinedError("no")

        def order(ctx: Context, first: Any) -> Any:
            ctx.rollback_checkpoint("begin")
            found = ctx.step("make", made, 7, rollback=at.refund)
            self.seen = [first, found]
            try:
                ctx.step("charge", declined)
            except at.DeclinedError as error:
                self.caught.append(type(error))
            ctx.sleep("cool off", "1 day")
            if first.number == 0:
                raise CriticalError("closed")
            return found["orders"]

        return order


@pytest.fixture
def shop() -> Shop:
    return Shop()


def begin(deploys: Deploys, shop: Shop, home: str = "models", number: int = 7) -> None:
    """Begin a run with code that has the classes in this module."""
    with modules(**{home: SHAPES}) as at:
        deploys.deploy(shop.order(at[home])).start(at[home].Order(number))
    assert Run.objects.get().state == "sleeping"


def every_row() -> list[tuple[Any, ...]]:
    return [
        *Run.objects.values_list("id", "input", "output", "fence", "change_seq", "lease_expires_at"),
        *Entry.objects.order_by("id").values_list("location", "output", "arguments", "data"),
    ]


def test_new_code_goes_on_with_a_run_whose_rows_stay_as_they_are(deploys: Deploys, shop: Shop) -> None:
    begin(deploys, shop)
    before = every_row()
    with modules(orders=SHAPES) as new:
        deploys.deploy(shop.order(new["orders"]))
        found = deploys.finding()
        assert (found.kind, "MoveClass" in found.mend) == (FindingKind.VALUE, True)
        for each in (*MOVES, HANDLER):
            apply(each)
        assert every_row() == before
        assert deploys.goes_on()
        assert go_on(deploys) == "completed"
        at = new["orders"]
        assert shop.seen == [at.Order(7), {"orders": [at.Order(7, (at.Order.Line("a"),))]}]
        assert shop.caught[-1] is at.DeclinedError


def test_a_deploy_is_taken_back(deploys: Deploys, shop: Shop) -> None:
    with modules(orders=SHAPES):
        for each in (*MOVES, HANDLER):
            apply(each)
    begin(deploys, shop, "orders")
    with modules(models=SHAPES) as back:
        deploys.deploy(shop.order(back["models"]))
        for each in (*MOVES, HANDLER):
            unapply(each)
        assert MovedName.objects.count() == len(MOVES) + 1  # records of both names are there
        assert deploys.goes_on()
        assert go_on(deploys) == "completed"
        assert shop.caught[-1] is back["models"].DeclinedError


@pytest.mark.parametrize(("home", "other"), [("models", "orders"), ("orders", "models")])
def test_a_handler_that_moved_undoes_the_step(deploys: Deploys, shop: Shop, home: str, other: str) -> None:
    with modules(**{home: SHAPES, "orders": SHAPES}):
        for each in (*MOVES, HANDLER):
            apply(each)
    begin(deploys, shop, home, number=0)
    with modules(**{other: SHAPES}) as at:
        deploys.deploy(shop.order(at[other]))
        assert go_on(deploys) == "failed"
        (undone,) = at[other].UNDONE
        assert undone == {"orders": [at[other].Order(7, (at[other].Order.Line("a"),))]}


def test_the_gate_reports_a_handler_that_moved_unless_a_migration_says_so(deploys: Deploys, shop: Shop) -> None:
    begin(deploys, shop)
    for each in MOVES:
        with modules(orders=SHAPES):
            apply(each)
    with modules(orders=SHAPES) as new:
        deploys.deploy(shop.order(new["orders"]))
        assert deploys.finding().kind == FindingKind.HANDLER
        apply(HANDLER)
        assert deploys.goes_on()


def test_bound_and_encrypted_values(deploys: Deploys, shop: Shop, settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "ENCRYPTION_KEYS": [Fernet.generate_key().decode()]}
    object.__setattr__(deploys.at, "codec", FernetCodec(bind="require"))
    begin(deploys, shop)
    assert "moving_shop" not in Run.objects.get().input
    with modules(orders=SHAPES) as new:
        for each in (*MOVES, HANDLER):
            apply(each)
        deploys.deploy(shop.order(new["orders"]))
        assert deploys.goes_on()
        assert go_on(deploys) == "completed"


# -- what a process knows


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often this process reads the table."""
    found: list[int] = []
    read = classes_looking._read
    monkeypatch.setattr(classes_looking, "_next", 0.0)

    def noted() -> None:
        found.append(1)
        read()

    monkeypatch.setattr(classes_looking, "_read", noted)
    return found


@pytest.mark.django_db(transaction=True)
def test_a_process_that_does_not_know_looks_once(looks: list[int]) -> None:
    with modules(models=SHAPES) as old:
        recorded = codec.encode(values(old["models"]))
        assert looks == []
    with modules(orders=SHAPES) as new:
        for each in MOVES:
            apply(each, is_known=False)
        assert codec.decode(recorded) == values(new["orders"])
        assert looks == [1]
        resolve_name("moving_shop.models:DeclinedError")
        assert looks == [1]


@pytest.mark.django_db(transaction=True)
def test_names_that_nobody_explains_cost_one_look_a_second(looks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes_looking, "_EVERY", 3600.0)
    for number in range(100):
        with pytest.raises(PayloadError):
            codec.decode(f'{{"$:dataclass":["moving_shop.models:Gone{number}",{{}}]}}')
        with pytest.raises(ModuleNotFoundError):
            resolve_name(f"moving_shop_{number}:refund")
        with pytest.raises(AttributeError):
            resolve_name(f"{__name__}:begin.<locals>.inner")
    assert looks == [1]


@pytest.mark.django_db(transaction=True)
def test_a_look_in_a_transaction_that_has_failed(looks: list[int]) -> None:
    with modules(models=SHAPES) as old:
        recorded = codec.encode(old["models"].Order(7))
    with modules(orders=SHAPES) as new:
        apply(MOVE, is_known=False)
        with transaction.atomic():
            with pytest.raises(DatabaseError), connection.cursor() as cursor:
                cursor.execute("SELECT nothing FROM nowhere")
            assert codec.decode(recorded) == new["orders"].Order(7)
            transaction.set_rollback(True)


@pytest.mark.django_db(transaction=True)
def test_a_look_on_an_event_loop(looks: list[int]) -> None:
    with modules(models=SHAPES) as old:
        recorded = codec.encode(old["models"].Order(7))

    async def read() -> Any:
        return codec.decode(recorded)

    with modules(orders=SHAPES) as new:
        apply(MOVE, is_known=False)
        assert asyncio.run(read()) == new["orders"].Order(7)
    assert looks == [1]


def test_a_run_whose_names_are_there_looks_for_nothing(deploys: Deploys, shop: Shop, looks: list[int]) -> None:
    with modules(models=SHAPES) as at:
        deploys.deploy(shop.order(at["models"])).start(at["models"].Order(7))
        assert go_on(deploys) == "completed"
    assert looks == []


# -- the operation


def with_a_run() -> None:
    Run.objects.create(
        id="one", workflow=NAME, queue="default", input="{}", state="sleeping", created_at=timezone.now()
    )


SMALL = "class Order(Exception):\n    pass\n"


@pytest.mark.usefixtures("db")
@pytest.mark.parametrize(
    ("operation", "sources", "problem"),
    [
        (MOVE, {"models": SHAPES}, r"moving_shop\.orders:Order cannot be imported"),
        (MOVE, {"orders": "def Order():\n    pass"}, "is not a class"),
        (MOVE, {"orders": SHAPES, "models": SHAPES}, "another class of that name"),
        (MOVE, {"orders": SHAPES, "models": SMALL}, "another class of that name"),
        (
            MoveClass("moving_shop.models.Order", "moving_shop.orders.Order.Line"),
            {"orders": SHAPES},
            "with a colon|colon behind",
        ),
        (HANDLER, {"models": SHAPES}, r"moving_shop\.orders:refund cannot be imported"),
        (HANDLER, {"orders": "class refund:\n    pass"}, "is not a function"),
        (HANDLER, {"orders": SHAPES, "models": SHAPES}, "another rollback handler of that name"),
    ],
)
def test_a_move_that_the_code_does_not_bear_out_is_refused(
    operation: Any, sources: dict[str, str], problem: str
) -> None:
    with_a_run()
    with modules(**sources), pytest.raises(RenameRefused, match=problem):
        apply(operation)
    assert not MovedName.objects.exists()


@pytest.mark.usefixtures("db")
@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (("moving_shop.models.Other", "moving_shop.orders.Order"), "could not be distinguished"),
        (("moving_shop.models.Other", "moving_shop.models.Order"), "could not be distinguished"),
        (("moving_shop.models.Order", "moving_shop.third.Order"), "has moved to moving_shop.orders:Order already"),
    ],
)
def test_two_classes_do_not_become_one(second: tuple[str, str], problem: str) -> None:
    apply(MOVE)
    with pytest.raises(RenameRefused, match=problem):
        apply(MoveClass(*second))
    assert MovedName.objects.count() == 1


@pytest.mark.usefixtures("db")
def test_it_is_applied_again_on_and_back() -> None:
    with_a_run()
    on, back = (
        MoveClass("moving_shop.orders.Order", "moving_shop.new.Order"),
        MoveClass("moving_shop.new.Order", "moving_shop.models.Order"),
    )
    with modules(orders=SHAPES):
        apply(MOVE)
        apply(MOVE)
    with modules(new=SHAPES):
        apply(on)
    with modules(models=SHAPES):
        apply(back)
    assert MovedName.objects.count() == 3


@pytest.mark.usefixtures("db")
def test_a_database_without_runs_takes_moves_of_code_that_has_gone_on() -> None:
    apply(MOVE)
    assert MovedName.objects.count() == 1
    unapply(MOVE)
    assert MovedName.objects.count() == 0


HOSTILE = [
    *(
        "",
        "Order",
        ".Order",
        "shop.",
        "shop..Order",
        "shop:models:Order",
        "shop.models:",
        ":Order",
        "shop models.Order",
    ),
    *("shop.models.Order\x00", "shop.models.Order\n", "shop.f.<locals>.Order", "shop.__main__.Order", "__main__:Order"),
    *("shop.\ud800.Order", "../shop.Order", "shop.models.Order()", "shop." + "a" * 500),
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(name: str) -> None:
    for given in ((name, "shop.models.Order"), ("shop.models.Order", name)):
        with pytest.raises(ValueError, match=r"not a path|part of a program|at most 500"):
            MoveClass(*given)
    with pytest.raises(TypeError):
        MoveClass("shop.models.Order", 7)  # type: ignore[arg-type]  # what a type checker refuses
    for pair in (("a.B", "a:B"), ("a.B", "a:B.C"), ("a:B.C", "a.B")):
        with pytest.raises(ValueError, match=r"already|nested in each other"):
            MoveClass(*pair)


def test_names_are_as_records_have_them() -> None:
    assert recorded_name("shop.models.Order") == recorded_name("shop.models:Order") == "shop.models:Order"
    assert recorded_name("shop.models:Order.Line") == "shop.models:Order.Line"
    assert recorded_name("shop.mödels.Größe") == "shop.mödels:Größe"
    moves = Moves([Move("a:B", "c:D")])
    assert moves.others("a:Bigger") == moves.others("a:B2.C") == ()


def test_a_hostile_row_leads_to_nothing_that_a_record_may_not_name() -> None:
    recorded_names.put_in_force(
        [Move("moving_shop.models:Order", "antigravity:Fly"), Move("a:B", "not a name"), Move("", "")]
    )
    with modules(models=""), pytest.raises(PayloadError, match="moved, renamed or removed"):
        codec.decode('{"$:dataclass":["moving_shop.models:Order",{}]}')
    assert "antigravity" not in sys.modules


def test_a_written_operation_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    made = [MOVE, HANDLER, MoveClass("a:B.C", "d.E", elidable=True)]
    squashed = type("Migration", (migrations.Migration,), {"operations": made})
    text = MigrationWriter(squashed("0002_squashed", "shop")).as_string()
    assert "import durable.migrations" in text
    file = tmp_path / "squashed.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("squashed", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert [each.deconstruct() for each in module.Migration.operations] == [each.deconstruct() for each in made]
    assert MOVE.reduce(MoveClass("moving_shop.orders.Order", "a.B"), "shop") is False  # both stay
    assert MOVE.describe() == "Say that the recorded class moving_shop.models.Order is moving_shop.orders.Order"
    assert MOVE.migration_name_fragment != HANDLER.migration_name_fragment


@pytest.mark.slow
@pytest.mark.usefixtures("db")
def test_10_000_runs_cost_as_many_statements_as_one() -> None:
    def statements(operation: MoveClass) -> int:
        with modules(orders=SHAPES), CaptureQueriesContext(connection) as captured:
            apply(operation)
        return len(captured)

    with_a_run()
    few = statements(MOVES[0])
    now = timezone.now()
    Run.objects.bulk_create(
        [
            Run(id=f"run-{n:05}", workflow=NAME, queue="default", input="{}", state="sleeping", created_at=now)
            for n in range(10_000)
        ],
        batch_size=1_000,
    )
    assert statements(MOVES[1]) == few <= 6


def test_the_gate_knows_of_a_migration_that_is_still_to_be_applied(
    deploys: Deploys, shop: Shop, shell: Shell, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(deploys, shop)
    file = tmp_path / "h.jsonl"
    file.write_text(shell("export", "order-1", "--history").out, encoding="utf-8")
    with modules(orders=SHAPES) as new:
        deploys.deploy(shop.order(new["orders"]))
        assert shell("replay-check", "--open").status == 1
        assert shell("replay-check", "--from", str(file)).status == 1
        project_migration(tmp_path, [*MOVES, HANDLER])
        monkeypatch.syspath_prepend(tmp_path)
        settings.MIGRATION_MODULES = {"shop": "moving_migrations"}
        assert shell("replay-check", "--open").status == 0
        assert shell("replay-check", "--from", str(file)).status == 0
    assert not MovedName.objects.exists()


def project_migration(path: Path, operations: list[Any]) -> None:
    """Write the package of migrations of an app of the project."""
    package = path / "moving_migrations"
    package.mkdir()
    (package / "__init__.py").touch()
    written = type("Migration", (migrations.Migration,), {"operations": operations})
    (package / "0001_move.py").write_text(MigrationWriter(written("0001_move", "shop")).as_string())
