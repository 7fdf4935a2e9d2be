"""State is made of what steps return."""

from collections import defaultdict

from durable import AsyncContext, Break, Context, Continue, workflow

seen = []
cache = {}
LIMITS = {"a": 1}
totals = defaultdict(int)


def work(*args):
    return args


@workflow(name="state.rebinds")
def rebinds(ctx: Context):
    total = 0

    def add():
        nonlocal total
        total += 5  # expect: W121

    ctx.step("add", add)
    if total > 3:
        ctx.step("big", work)


@workflow(name="state.appends")
def appends(ctx: Context, orders: list):
    paid = []
    for order in orders:
        ctx.step(f"pay {order}", lambda order=order: paid.append(order))  # expect: W121
    return paid


@workflow(name="state.sets_items")
def sets_items(ctx: Context):
    found = {}

    def fill():
        found["a"] = 1  # expect: W121
        found.update(b=2)  # expect: W121

    ctx.step("fill", fill)
    ctx.step("use", work, found)


@workflow(name="state.passed")
def passed(ctx: Context):
    found = []
    ctx.step("fill", fill_list, found)
    return len(found)


def fill_list(target):
    target.append(1)  # expect: W121


@workflow(name="state.async")
async def in_async(ctx: AsyncContext):
    rows = []

    async def load():
        rows.extend([1, 2])  # expect: W121

    await ctx.step("load", load)
    for row in rows:
        await ctx.step(f"row {row}", work)


@workflow(name="state.in_a_branch")
def in_a_branch(ctx: Context):
    found = {}

    def branch(c: Context):
        c.step("get", lambda: found.update(a=1))  # expect: W121

    ctx.join("both", {"a": branch})
    return found


@workflow(name="state.own_variables")
def own_variables(ctx: Context, orders: list):
    def count():
        lines = []
        lines.append(1)
        by_name = {}
        by_name["a"] = lines
        return by_name

    found = ctx.step("count", count)
    paid = []
    for order in orders:
        paid.append(ctx.step(f"pay {order}", work, order))
    found["paid"] = paid
    return found


@workflow(name="state.never_read")
def never_read(ctx: Context):
    log = []
    ctx.step("a", lambda: log.append("a"))
    ctx.step("b", lambda: log.append("b"))


@workflow(name="state.globals")
def uses_globals(ctx: Context):
    ctx.step("fill", fill_cache)
    if "a" in cache:  # expect: W122
        ctx.step("use", work)
    ctx.step("note", lambda: totals.update(a=1))
    ctx.step("read", read_totals)


def fill_cache():
    cache["a"] = 1


def read_totals():
    return totals["a"]  # expect: W122


@workflow(name="state.constants")
def constants(ctx: Context, kind: str):
    limit = LIMITS[kind]
    seen.append(kind)
    ctx.step("a", work, limit)


@workflow(name="state.changed_input")
def changed_input(ctx: Context, event: dict, lines: list):
    event["seen"] = True  # expect: W123
    lines.append("x")  # expect: W123
    event["lines"].pop()  # expect: W123
    del event["user"]  # expect: W123
    event |= {"a": 1}  # expect: W123
    for line in lines:
        line["price"] = 1  # expect: W123
    ctx.step("a", work, event)


@workflow(name="state.added_to_input")
def added_to_input(ctx: Context, lines: list, count: int):
    lines += ["x"]  # expect: W123
    count += 1
    ctx.step("a", work, lines, count)


@workflow(name="state.changed_in_a_step")
def changed_in_a_step(ctx: Context, event: dict):
    ctx.step("enrich", enrich, event)
    ctx.step("use", work, event["extra"])


def enrich(event):
    event["extra"] = 1  # expect: W123


@workflow(name="state.copied_input")
def copied_input(ctx: Context, event: dict, lines: list):
    event = dict(event)
    event["seen"] = True
    mine = list(lines)
    mine.append("x")
    again = {**event, "a": 1}
    again["b"] = 2
    ctx.step("a", work, event, mine, again)


@workflow(name="state.loop_state")
def loop_state(ctx: Context, orders: list):
    def one(c: Context, state: dict):
        state = {**state, "n": state["n"] + 1}
        c.step("work", work, state["n"])
        return Break(state) if state["n"] > 3 else Continue(state)

    return ctx.loop("all", one, state={"n": 0})


class Basket:
    def __init__(self):
        self.lines = []

    def add(self, line):
        self.lines.append(line)


@workflow(name="state.objects")
def objects(ctx: Context, orders: list):
    basket = Basket()
    for order in orders:
        basket.add(ctx.step(f"price {order}", work, order))
    return ctx.step("total", work, len(basket.lines))


@workflow(name="state.memo_of_a_workflow")
def memo_of_a_workflow(ctx: Context, order: int):
    if order not in cache:  # expect: W122
        cache[order] = ctx.step("price", work, order)
    return cache[order]


prices = {}


def price_of(order):
    if order not in prices:
        prices[order] = work(order)
    return prices[order]


@workflow(name="state.memo_of_a_helper")
def memo_of_a_helper(ctx: Context, order: int):
    return ctx.step("price", work, price_of(order))
