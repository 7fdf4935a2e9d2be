"""The codec keeps every value it accepts exactly, refuses the rest with a path and advice, and trusts no text."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import functools
import inspect
import io
import itertools
import json
import math
import struct
import subprocess
import sys
import threading
import typing
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import pydantic
import pytest
from django.core.files.base import ContentFile
from django.db import models
from django.test.utils import isolate_apps
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from durable.codec import Codec, JsonCodec
from durable.codec.classes import PREFIX
from durable.core.errors import PayloadError

codec = JsonCodec()
HERE = __name__
T = TypeVar("T")

prop = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])


# The classes that values of this module have ---------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "r"
    CRIMSON = RED  # an alias
    BLUE = (1, 2)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    ALL = 3


class Mode(enum.IntFlag):
    A = 1
    B = 2


class Status(models.TextChoices):
    NEW = "new", "brand new"


@dataclasses.dataclass
class Plain:
    a: Any
    b: Any = 1
    c: list[Any] = dataclasses.field(default_factory=list)
    shared: ClassVar[int] = 5


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slotted:
    a: Any
    b: Any = None


@dataclasses.dataclass
class Computed:
    a: int
    given: dataclasses.InitVar[int] = 0
    twice: int = dataclasses.field(init=False)
    made: ClassVar[int] = 0

    def __post_init__(self, given: int) -> None:
        self.twice = self.a * 2 + given
        Computed.made += 1

    @functools.cached_property
    def thrice(self) -> int:
        return self.a * 3

    class Inner(NamedTuple):
        x: Any


class Undecorated(Plain):
    """Inherits the fields of a dataclass."""


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


class Point(NamedTuple):
    x: Any
    y: Any = 0


Pair = collections.namedtuple("Pair", ["left", "right"])


class Model(pydantic.BaseModel):
    a: Any
    b: Any = None
    at: dt.datetime | None = None
    _secret: Any = pydantic.PrivateAttr(default=None)


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", frozen=True)
    a: int = 1


class Numbers(pydantic.RootModel[list[int]]):
    pass


class GenericModel(pydantic.BaseModel, Generic[T]):
    item: T


# Equality that also looks at types ---------------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Whether two values are of the same type and equal, all the way down; NaN is the same as NaN, 0.0 not as -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, enum.Flag):  # Python 3.11.2 makes a new object for each value without a name
        return a is b or (a.name is None and a.value == b.value)
    if isinstance(a, enum.Enum):
        return a is b
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, Decimal):
        return bool(a.as_tuple() == b.as_tuple())
    if isinstance(a, dt.datetime | dt.time):
        bare = a.replace(tzinfo=None) == b.replace(tzinfo=None) and a.fold == b.fold
        return bare and type(a.tzinfo) is type(b.tzinfo) and a.utcoffset() == b.utcoffset() and a.tzname() == b.tzname()
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, set | frozenset):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, pydantic.BaseModel):
        return same(pydantic.BaseModel.__getstate__(a), pydantic.BaseModel.__getstate__(b))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return bool(a == b)


def survives(value: Any) -> bool:
    return same(codec.decode(codec.encode(value)), value)


# Strategies over all that is supported ----------------------------------------------------------------------------

zones = st.one_of(
    st.sampled_from([dt.UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), ZoneInfo("UTC")]),
    st.timedeltas(min_value=dt.timedelta(hours=-23), max_value=dt.timedelta(hours=23)).map(dt.timezone),
    st.builds(dt.timezone, st.just(dt.timedelta(hours=1)), st.text(max_size=4)),
)


def folded(value: Any, fold: int) -> Any:
    return value.replace(fold=fold)


moments = st.datetimes(min_value=dt.datetime(2, 1, 2), max_value=dt.datetime(9998, 1, 1))  # noqa: DTZ001 - naive ones too
texts = st.text(st.characters(codec=None, categories=None), max_size=8) | st.sampled_from(
    ["\x00", "\ud800", "\ud800\udc00", "\U0001f600", "$:", "$:tuple", '"$:', "\\ud83d"]
)
hashables = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**60, 2**70),
    st.floats(),
    texts,
    st.binary(max_size=8),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.dates(),
    st.timedeltas(),
    st.builds(folded, st.datetimes(), st.integers(0, 1)),
    st.builds(lambda m, z, f: m.replace(tzinfo=z, fold=f), moments, zones, st.integers(0, 1)),
    st.builds(folded, st.times(timezones=st.none() | zones), st.integers(0, 1)),
    st.complex_numbers(),
    st.sampled_from([*Colour, *Level, *Word, *Access, *Mode, *Status, Access(0), Mode.A | Mode.B, Mode(8)]),
)
_leaves = hashables | st.decimals() | st.sampled_from([Decimal("sNaN12"), Decimal("-0.00"), 10**700])
leaves = _leaves | st.builds(lambda: -(10**5000))  # more digits than Python would print

keys = st.recursive(
    hashables,
    lambda inner: st.one_of(
        st.tuples(inner, inner),
        st.frozensets(inner, max_size=3),
        inner.map(Point),
        inner.map(Frozen),
    ),
    max_leaves=3,
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
        st.builds(Plain, inner, inner),
        inner.map(Undecorated),
        inner.map(Frozen),
        st.builds(Slotted, a=inner, b=inner),
        inner.map(Box),
        st.builds(Computed, st.integers(), st.integers()),
        inner.map(Computed.Inner),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
        inner.map(lambda item: Model(a=item)),
        inner.map(lambda item: Open.model_validate({"more": item})),
        st.lists(st.integers(), max_size=3).map(Numbers),
    ),
    max_leaves=12,
)


@prop
@given(values)
def test_what_comes_out_is_what_went_in(value: Any) -> None:
    text = codec.encode(value)
    assert text.isascii()
    assert "\x00" not in text
    json.loads(text, parse_constant=pytest.fail)
    assert same(codec.decode(text), value)


@prop
@given(values)
def test_the_text_of_a_value_is_stable(value: Any) -> None:
    text = codec.encode(value)
    assert codec.encode(codec.decode(text)) == text


@pytest.mark.parametrize(
    "value",
    [
        True,
        1,
        1.0,
        -0.0,
        5e-324,
        math.inf,
        math.nan,
        [math.nan, -math.inf],
        {"n": math.nan},
        2**64,
        10**4299,
        10**4300,
        [-(10**9000)],
        {10**9000: 1},
        "nul \x00",
        "\ud800",
        "\ud800\udc00",
        {"\ud83d\ude00": "\U0001f600"},
        {},
        [],
        (),
        set(),
        {1: "int", "1": "str", None: 0, 2.5: 1, (1, (2,)): 3, b"x": 4},
        {True: 1, "true": 2},
        {"$:tuple": [1]},
        {"$:": {"$:dict": []}},
        {"a": 1, "$:uuid": 2},
        {"z": 1, "a": 2},
        complex(-0.0, math.nan),
        Decimal("1.10"),
        Decimal("-NaN7"),
        dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        dt.datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
        dt.datetime(1, 1, 1),  # noqa: DTZ001 - a naive one is recorded too
        dt.datetime.max.replace(tzinfo=dt.UTC),
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone(dt.timedelta(microseconds=1))),
        dt.time(1, 2, 3, 4, tzinfo=ZoneInfo("Asia/Tokyo")),
        dt.timedelta.min,
        dt.timedelta.max,
        Access.READ | Access.WRITE,
        Colour.CRIMSON,
        uuid.UUID(int=0),
        [[[[]]]],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_tricky_value_survives(value: Any) -> None:
    assert survives(value)
    assert survives([value])
    assert survives({"key": (value,)})


@pytest.mark.parametrize("odd", [{PREFIX: 1}, "\ud83d"])
def test_what_is_too_long_as_plain_json_is_refused_before_it_is_looked_through(odd: Any) -> None:
    value = [odd, *range(100)]
    plain = len(json.dumps(value, separators=(",", ":")))
    with pytest.raises(PayloadError, match=f"it takes {plain} bytes"):
        JsonCodec(max_bytes=100).encode(value)


def test_plain_values_are_plain_json() -> None:
    assert (
        codec.encode({"id": "ch_1", "paid": True, "n": [1, 2.5, None]}) == '{"id":"ch_1","paid":true,"n":[1,2.5,null]}'
    )


def test_the_order_of_a_set_does_not_show() -> None:
    numbers = [*range(50), "a", (1, 2)]
    shuffled = {*numbers[::-1]}
    assert codec.encode({*numbers}) == codec.encode(shuffled)


def test_two_threads_share_a_codec() -> None:
    wrong: list[object] = []

    def work(n: int) -> None:
        wrong.extend(n for _ in range(200) if not survives({"n": (n, {n})}))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_satisfies_the_protocol() -> None:
    assert isinstance(codec, Codec)


def test_safe_text_comes_out_as_plain_text() -> None:
    out = codec.decode(codec.encode([mark_safe("<b>")]))
    assert same(out, ["<b>"])


# Classes of the user ----------------------------------------------------------------------------------------------


def test_a_dataclass_is_rebuilt_without_running_its_code() -> None:
    value = Computed(2, 40)
    value.twice = 99
    made = Computed.made
    out = codec.decode(codec.encode(value))
    assert (out.a, out.twice) == (2, 99)
    assert Computed.made == made


def test_a_cached_property_is_computed_again() -> None:
    value = Computed(2)
    assert value.thrice == 6
    out = codec.decode(codec.encode(value))
    assert "thrice" not in vars(out)
    assert out.thrice == 6


def test_the_private_parts_of_a_pydantic_model_are_kept() -> None:
    value = Model(a={1, 2}, at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    value._secret = (1,)
    out = codec.decode(codec.encode(value))
    assert out == value
    assert out._secret == (1,)
    assert out.model_fields_set == {"a", "at"}


def test_no_validator_of_a_pydantic_model_runs() -> None:
    value = Open.model_construct(a="not a number")
    out = codec.decode(codec.encode(value))
    assert out.a == "not a number"


def test_a_pydantic_model_without_a_required_field_is_refused() -> None:
    with pytest.raises(PayloadError, match="Model lacks its field a; give model_construct"):
        codec.encode(Model.model_construct())


def test_a_type_of_an_installed_package_is_to_be_made_a_text() -> None:
    with pytest.raises(PayloadError, match=r"SecretStr, which the codec does not know; pass .* `str\(value\)`"):
        codec.encode(pydantic.SecretStr("x"))


def recorded(tag: str, name: str, body: object) -> str:
    return json.dumps({f"$:{tag}": [f"{HERE}:{name}", body]})


def test_a_field_added_since_takes_its_default() -> None:
    assert codec.decode(recorded("dataclass", "Plain", {"a": 7})) == Plain(7, 1, [])
    assert codec.decode(recorded("named", "Point", {"x": 7})) == Point(7, 0)
    model = {"$:pydantic": [f"{HERE}:Model", {"a": 7}, ["a"], None, None]}
    assert codec.decode(json.dumps(model)).b is None


def test_default_factories_are_not_shared() -> None:
    text = recorded("dataclass", "Plain", {"a": 7})
    assert codec.decode(text).c is not codec.decode(text).c


@pytest.mark.parametrize(
    ("text", "problem", "advice"),
    [
        (recorded("dataclass", "Plain", {"b": 1}), "field a that was not recorded", "default"),
        (recorded("named", "Point", {"y": 1}), "field x that was not recorded", "default"),
        (recorded("dataclass", "Plain", {"a": 1, "gone": 2}), "no field 'gone' now", "put the field back"),
        (recorded("named", "Point", {"x": 1, "gone": 2}), "no field 'gone' now", "put the field back"),
        (recorded("enum", "Colour", "GONE"), "no member 'GONE'", "put the member back"),
        (recorded("dataclass", "Gone", {}), "moved, renamed or removed", f"alias of it in {HERE} under the name Gone"),
        (recorded("enum", "Plain", "x"), "enumeration", "again"),
        (recorded("dataclass", "same", {}), "moved, renamed or removed", "put it back"),
        ('{"$:novel":1}', "unknown", "version of durable"),
        ('{"$:datetime":["2026-01-01T00:00:00","Mars/Base",0]}', "no time zone 'Mars/Base'", "tzdata"),
    ],
)
def test_text_that_the_code_outgrew_is_explained(text: str, problem: str, advice: str) -> None:
    with pytest.raises(PayloadError) as caught:
        codec.decode(f'{{"items":[0,{text}]}}', what="the output of step one")
    assert caught.value.what == "the output of step one"
    assert caught.value.path == "$.items[1]"
    assert problem in caught.value.problem
    assert advice in caught.value.advice


def test_an_alias_stands_for_a_class_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[HERE], "OldPlain", Plain, raising=False)
    assert codec.decode(recorded("dataclass", "OldPlain", {"a": 1})) == Plain(1)


# Refusals ---------------------------------------------------------------------------------------------------------


def refused(value: Any, path: str = "$") -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        codec.encode(value, what="the input")
    assert caught.value.what == "the input"
    assert caught.value.path == path
    return caught.value


@isolate_apps("django.contrib.contenttypes")
def test_django_objects_are_refused_without_a_query() -> None:
    class Order(models.Model):  # noqa: DJ008 - never shown
        objects = models.Manager()

        class Meta:
            app_label = "codec_tests"

    orders: Any = Order._default_manager
    assert "order.pk" in refused({"items": [1, 2, 3, {"user": Order(pk=1)}]}, "$.items[3].user").advice
    assert "list(qs.values_list(" in refused([orders.all()], "$[0]").advice
    assert "values_list" in refused(orders).advice
    assert "name" in refused(ContentFile(b"x", name="x")).advice
    assert "user.pk" in refused(SimpleLazyObject(lambda: pytest.fail("evaluated"))).advice
    assert "class" in refused(Order).problem


class Rogue:
    __slots__ = ("x",)


class SlottedChild(Slotted):
    __slots__ = ("__hidden", "extra")


class Words(str):
    __slots__ = ()


class Bare(tuple[int, ...]):
    __slots__ = ()


@dataclasses.dataclass
class Trouble(Exception):
    a: int = 1


@dataclasses.dataclass
class NeverSet:
    a: int = dataclasses.field(init=False)


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (lambda: 1, "call it in a step"),
        (len, "call it in a step"),
        (functools.partial(len), "call it in a step"),
        (Plain, "importable name"),
        (generator(), "list(...)"),
        (iter([]), "list(...)"),
        (map(str, []), "list(...)"),
        (itertools.count(), "list(...)"),
        (gettext_lazy("hello"), "str(...)"),
        (ValueError("no"), "str(error)"),
        (Trouble(), "str(error)"),
        (io.BytesIO(), "content"),
        (Path("x"), "str(path)"),
        (bytearray(b"x"), "bytes(...)"),
        (range(3), "list(...)"),
        ({}.keys(), "list(...)"),
        (collections.OrderedDict(), "dict(...)"),
        (collections.defaultdict(int), "dict(...)"),
        (collections.Counter(), "dict(...)"),
        (collections.deque(), "list(...)"),
        (Words("x"), "str(...)"),
        (Bare(), "tuple(...)"),
        (dt.UTC, "name"),
        (sys, "name"),
        (Rogue(), "dataclass"),
        (threading.Lock(), "dict"),
        (NeverSet(), "__post_init__"),
        (typing.Any, "dict"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_kept_is_refused_with_advice(value: Any, advice: str) -> None:
    error = refused({"a b": [value]}, "$['a b'][0]")
    assert advice in error.advice or "importable name" in error.advice
    assert refused({1: value}, "$[1]").advice == error.advice
    assert error.problem in str(error)


def test_a_coroutine_is_refused() -> None:
    waiting = coroutine()
    assert "await" in refused((waiting,), "$[0]").advice
    waiting.close()


def test_paths_lead_through_every_container() -> None:
    bad = object()
    refused(Plain(bad), "$.a")
    refused(Point(1, [bad]), "$.y[0]")
    refused(Model(a=(bad,)), "$.a[0]")
    refused({(1, 2): bad}, "$[<tuple>]")
    refused({bad}, "${element}")
    refused({bad: 1}, "${key}")
    secret = Model(a=1)
    secret._secret = bad
    refused(secret, "$._secret")


def test_a_class_that_no_worker_could_import_is_refused() -> None:
    @dataclasses.dataclass
    class Local:
        a: int

    assert "top level of a module" in refused([Local(1)], "$[0]").advice
    assert "subclass" in refused(GenericModel[int](item=1)).advice
    nameless = dataclasses.make_dataclass("Nameless", ["a"])
    nameless.__module__ = "__main__"
    assert "a worker can import" in refused(nameless(1)).advice


def test_a_class_that_lost_its_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    value = Plain(1)
    monkeypatch.setattr(sys.modules[HERE], "Plain", Frozen)
    assert "something else" in refused(value).problem


def test_attributes_beside_the_fields_are_not_lost_in_silence() -> None:
    value = Plain(1)
    value.note = "x"  # type: ignore[attr-defined]  # the point of the test
    assert "note" in refused(value).problem
    child = SlottedChild(a=1)
    assert survives(child)
    object.__setattr__(child, "extra", 1)
    assert "extra" in refused(child).problem
    hidden = SlottedChild(a=1)
    object.__setattr__(hidden, "_SlottedChild__hidden", 1)
    assert "hidden" in refused(hidden).problem


def test_a_foreign_time_zone_is_refused() -> None:
    class Elsewhere(dt.tzinfo):
        def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
            return dt.timedelta(hours=1)

        dst = utcoffset

        def tzname(self, _: dt.datetime | None) -> str:
            return "elsewhere"

    assert "zoneinfo" in refused([dt.datetime(2026, 1, 1, tzinfo=Elsewhere())], "$[0]").advice


def test_cycles_and_depth_are_refused() -> None:
    loop: list[Any] = [1]
    loop.append({"self": loop})
    assert "contains itself" in refused(loop, "$[1].self").problem
    knot = Plain(1)
    knot.a = (knot,)
    assert "contains itself" in refused(knot, "$.a[0]").problem


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda v: [v],
        lambda v: {"a": v},
        lambda v: (v,),
        lambda v: {1: v},
        Box,
        Frozen,
        lambda v: Model.model_construct(a=v),
    ],
    ids=["list", "dict", "tuple", "pairs", "dataclass", "frozen", "pydantic"],
)
def test_a_hundred_levels_are_kept_and_more_are_refused(wrap: Callable[[Any], Any]) -> None:
    deep = nested(100, wrap)
    assert codec.encode(codec.decode(codec.encode(deep))) == codec.encode(deep)
    with pytest.raises(PayloadError, match="more than 100 levels"):
        codec.encode(nested(101, wrap))
    with pytest.raises(PayloadError, match="levels"):
        codec.encode(nested(5_000, wrap))


def test_a_stack_that_is_nearly_used_up_is_a_payload_error() -> None:
    deep = nested(100, lambda v: (v,))
    text = codec.encode(deep)

    def from_depth(frames: int, call: Callable[[], object]) -> object:
        return from_depth(frames - 1, call) if frames else call()

    left = sys.getrecursionlimit() - len(inspect.stack(0)) - 100
    with pytest.raises(PayloadError, match="nested too deeply"):
        from_depth(left, lambda: codec.encode(deep))
    with pytest.raises(PayloadError, match="nested too deeply"):
        from_depth(left, lambda: codec.decode(text))


def test_a_value_that_multiplies_itself_is_refused() -> None:
    small = JsonCodec(max_bytes=10_000)
    for value in (nested(60, lambda v: [v, v]), nested(60, lambda v: (v, v))):
        with pytest.raises(PayloadError, match="limit of 10,000"):
            small.encode(value)


def test_a_value_met_twice_is_no_cycle() -> None:
    part = [1]
    assert survives([part, part, (part,)])


# Size -------------------------------------------------------------------------------------------------------------


def test_the_size_limit_is_exact_and_named() -> None:
    small = JsonCodec(max_bytes=10)
    assert small.encode("x" * 8) == '"xxxxxxxx"'
    with pytest.raises(PayloadError) as caught:
        small.encode("x" * 9, what="the output of step big")
    text = str(caught.value)
    assert all(
        part in text for part in ("the output of step big", "11", "10", 'DURABLE["MAX_PAYLOAD_BYTES"]', "reference")
    )


def test_the_default_limit_is_one_mebibyte() -> None:
    codec.encode("x" * (1_048_576 - 2))
    with pytest.raises(PayloadError, match=r"1,048,577 bytes and the limit is 1,048,576"):
        codec.encode("x" * (1_048_576 - 1))


def test_text_recorded_under_a_higher_limit_is_still_read() -> None:
    assert JsonCodec(max_bytes=5).decode('"longer than five"') == "longer than five"


def test_a_limit_that_is_no_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        JsonCodec(max_bytes=0)


# Hostile text -----------------------------------------------------------------------------------------------------


def decode_or_refuse(text: Any) -> None:
    try:
        value = codec.decode(text)
    except PayloadError:
        return
    # Whatever it does build is of a type that is recorded: nothing else came to life.
    codec.encode(value)


@prop
@given(st.text() | st.binary() | st.none() | st.integers())
def test_arbitrary_text_is_a_value_or_a_payload_error(text: Any) -> None:
    decode_or_refuse(text)


@pytest.mark.slow
@prop
@given(values, st.data())
def test_damaged_text_is_a_value_or_a_payload_error(value: Any, data: st.DataObject) -> None:
    text = codec.encode(value)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    patch = data.draw(st.text(max_size=4) | st.sampled_from(["0", "null", "[]", "{}", '""', '"$:set"', ":", ","]))
    decode_or_refuse(text[:start] + patch + text[end:])


names = st.sampled_from(["Plain", "Slotted", "Computed", "Colour", "Access", "Mode", "Point", "Pair", "Model", "Open"])
TAGS = (
    *("str", "int", "float", "complex", "bytes", "decimal", "uuid", "datetime", "date", "time", "timedelta"),
    *("tuple", "set", "frozenset", "dict", "enum", "flag", "named", "dataclass", "pydantic", "", "nope"),
)
hostile = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        names.map(lambda name: f"{HERE}:{name}"),
        st.sampled_from(
            [
                "os:system",
                "builtins:type",
                "builtins:int",
                "enum:Enum",
                "enum:Flag",
                "pydantic:BaseModel",
                "a:b",
                ":",
                "x",
            ]
        ),
        st.sampled_from(["RED", "2026-01-01T00:00:00", "../../etc/passwd", "1E+999999999999999999", "0x1", "nan"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["a", "b", "c", "x", "item"]), inner, max_size=3),
        st.builds(
            lambda tag, body: {tag: body},
            st.sampled_from([f"$:{tag}" for tag in TAGS]),
            inner | st.lists(inner, max_size=5),
        ),
        st.builds(
            lambda tag, name, body: {tag: [f"{HERE}:{name}", *body]},
            st.sampled_from(["$:enum", "$:flag", "$:named", "$:dataclass", "$:pydantic"]),
            names,
            st.lists(inner, min_size=1, max_size=4),
        ),
    ),
    max_leaves=15,
)


@prop
@given(hostile)
def test_tags_in_any_combination_are_a_value_or_a_payload_error(tree: Any) -> None:
    decode_or_refuse(json.dumps(tree))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 100_000,
        '{"$:tuple":[' * 400 + "]}" * 400,
        '{"$:frozenset":[' * 100 + "]}" * 100 + "x",
        "9" * 100_000,
        "NaN",
        "[Infinity]",
        "",
        "\ufeff1",
        '{"$:tuple":[],"$:set":[]}',
        '{"$:set":[1,1]}',
        '{"$:set":[[1]]}',
        '{"$:dict":[[1,2],[1,3]]}',
        '{"$:decimal":1}',
        '{"$:timedelta":[1e400,0,0]}',
        '{"$:flag":["enum:Flag",1]}',
        '{"$:enum":["enum:Enum","name"]}',
        '{"$:pydantic":["pydantic.main:BaseModel",{},[],null,null]}',
        '{"$:dataclass":["builtins:object",{}]}',
        '{"$:dataclass":["subprocess:Popen",{}]}',
        '{"$:dataclass":["..:x",{}]}',
        '{"$:dataclass":["pip.__main__:x",{}]}',
    ],
    ids=lambda text: text[:24],
)
def test_a_bomb_is_a_payload_error(text: str) -> None:
    with pytest.raises(PayloadError):
        codec.decode(text)


def test_text_imports_nothing_of_a_package_that_is_not_in_use() -> None:
    assert "antigravity" not in sys.modules
    with pytest.raises(PayloadError, match="nothing in this process has imported antigravity"):
        codec.decode('{"$:dataclass":["antigravity:Fly",{}]}')
    assert "antigravity" not in sys.modules


def test_a_module_of_a_package_in_use_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "codec_probe"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "shapes.py").write_text("from typing import NamedTuple\nclass Dot(NamedTuple):\n    x: int\n")
    (package / "broken.py").write_text("raise SystemError('at import')\n")
    (package / "__main__.py").write_text("raise AssertionError('ran')\n")
    (package / "script.py").write_text("import codec_probe\ncodec_probe.ran = True\nDot2 = 1\n")
    (package / "inner").mkdir()
    (package / "inner" / "__init__.py").write_text("import codec_probe\ncodec_probe.ran = True\n")
    (package / "inner" / "shapes.py").write_text(
        "try:\n    from codec_probe.shapes import Dot\nexcept ImportError:\n    pass\nOther = Dot\n"
    )
    (package / "fallback.py").write_text(
        "try:\n    import codec_probe.missing\nexcept ImportError:\n    from codec_probe.shapes import Dot\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    dot = '{"$:named":["codec_probe.shapes:Dot",{"x":1}]}'
    with pytest.raises(PayloadError, match=r"import codec_probe in the workflows\.py"):
        codec.decode(dot)
    monkeypatch.setitem(sys.modules, "codec_probe", __import__("codec_probe"))
    assert codec.decode(dot) == (1,)
    with pytest.raises(PayloadError, match="moved, renamed or removed"):
        codec.decode(dot.replace("shapes", "broken"))
    with pytest.raises(PayloadError, match="part of a program"):
        codec.decode(dot.replace("shapes", "__main__"))
    for nowhere in ("script", "inner", "inner.shapes.deeper", "missing.shapes"):
        with pytest.raises(PayloadError, match="moved, renamed or removed"):
            codec.decode(dot.replace("shapes", nowhere))
    assert not hasattr(sys.modules["codec_probe"], "ran")  # no file has run that has no such class
    assert codec.decode(dot.replace("shapes", "inner.shapes")) == (1,)
    assert codec.decode(dot.replace("shapes:Dot", "inner.shapes:Other")) == (1,)
    assert codec.decode(dot.replace("shapes", "fallback")) == (1,)
    for name in [name for name in sys.modules if name.startswith("codec_probe.")]:
        del sys.modules[name]


@pytest.mark.parametrize("form", ['{{"$:set":[{}]}}', '{{"$:dict":[{}]}}'])
def test_elements_of_one_hash_are_refused(form: str) -> None:
    modulus = sys.hash_info.modulus
    alike = [str(number * modulus) for number in range(20_000)]
    elements = ",".join(alike) if "set" in form else ",".join(f"[{each},1]" for each in alike)
    with pytest.raises(PayloadError, match="have the same hash"):
        codec.decode(form.format(elements))
    few = {number * modulus for number in range(500)}
    assert codec.decode(codec.encode(few)) == few
    with pytest.raises(PayloadError, match="have the same hash"):
        codec.encode({number * modulus for number in range(1_100)})


def test_errors_about_damaged_text_do_not_quote_it() -> None:
    with pytest.raises(PayloadError) as caught:
        codec.decode('{"$:date":"the secret"}')
    assert "secret" not in str(caught.value)


def test_the_codec_needs_neither_django_nor_pydantic() -> None:
    program = (
        "import sys; from durable.codec import JsonCodec; c = JsonCodec()\n"
        "assert c.decode(c.encode((1, {2}))) == (1, {2})\n"
        "try: c.encode(object())\n"
        "except Exception as error: assert type(error).__name__ == 'PayloadError', error\n"
        "print([name for name in ('django', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"
