"""A step's options: what callers write and what the engine reads are the same."""

from __future__ import annotations

from dataclasses import fields

import durable
from durable.core.options import CommonStepOptions, StepOptions, StepPolicy


def test_callers_write_the_options_that_the_engine_reads() -> None:
    assert StepOptions.__optional_keys__ == {each.name for each in fields(StepPolicy)}
    assert not StepOptions.__required_keys__
    assert CommonStepOptions.__optional_keys__ == StepOptions.__optional_keys__ - {"rollback"}
    assert durable.StepOptions is StepOptions
