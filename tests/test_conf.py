"""Settings: defaults, durations, changes at run time."""

from datetime import timedelta

import pytest
from django.test import override_settings

from durable.conf import conf


def test_defaults_are_those_of_the_design() -> None:
    with override_settings(DURABLE={}):
        assert conf.CODEC == "durable.codec.JsonCodec"
        assert conf.MAX_PAYLOAD_BYTES == 1024 * 1024
        assert (conf.SHORT_SLEEP, conf.LEASE, conf.SWEEP_INTERVAL) == (0.1, 30.0, 5.0)
        assert (conf.MAX_BRANCH_THREADS, conf.MAX_CRASHES, conf.DIVERGENCE_GRACE) == (8, 5, 600.0)
        assert (conf.DATABASE, conf.QUEUE, conf.RETENTION) == ("default", "default", None)


def test_a_change_of_the_settings_is_seen_and_forgotten() -> None:
    before = conf.LEASE
    with override_settings(DURABLE={"LEASE": before + 7}):
        assert before + 7 == conf.LEASE
    assert before == conf.LEASE


@pytest.mark.parametrize(("given", "seconds"), [(timedelta(minutes=2), 120.0), (90, 90.0), (0.25, 0.25)])
def test_durations_are_seconds(given: object, seconds: float) -> None:
    with override_settings(DURABLE={"LEASE": given, "RETENTION": given}):
        assert (seconds, seconds) == (conf.LEASE, conf.RETENTION)
        assert isinstance(conf.LEASE, float)


def test_unknown_keys_and_wrong_types_are_the_checks_business() -> None:
    with override_settings(DURABLE={"LAESE": 3, "QUEUE": "high"}):
        assert conf.QUEUE == "high"
        assert not hasattr(conf, "LAESE")
    with override_settings(DURABLE=["LEASE"]):
        assert conf.LEASE == 30.0


def test_project_without_the_setting(settings: object) -> None:
    del settings.DURABLE  # type: ignore[attr-defined]
    assert conf.QUEUE == "default"
