"""What helpers call."""

import time

from corpus_of_nobody import unknown

from . import helpers


def wait():
    time.sleep(5)  # expect: W110


def first():
    second()


def second():
    third()


def third():
    unknown(helpers)
    time.sleep(5)
