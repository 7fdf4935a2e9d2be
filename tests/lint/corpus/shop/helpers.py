"""Helpers that workflows of another module call, one and two calls deep."""

import time
from datetime import datetime

from . import deeper
from .models import Order


def stamp():
    return datetime.now().isoformat()  # expect: W101


def pause():
    deeper.wait()


def too_deep():
    deeper.first()


def load(order_id):
    return Order.objects.get(pk=order_id)


def notify(ctx, order_id):
    ctx.step("notify", load, order_id)
    Order.objects.count()  # expect: W109


class Tools:
    def __init__(self, ctx):
        self.ctx = ctx
        self.made_at = time.time()  # expect: W101

    def run(self, ctx, order_id):
        self.check()
        return ctx.step("tool", load, order_id)

    def check(self):
        time.time()  # expect: W101

    @classmethod
    def body(cls, ctx):
        time.sleep(1)  # expect: W110
        return ctx.step("in a body", load, 1)
