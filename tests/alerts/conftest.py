"""Runs on the real store and a clock of the test's own, as the admin's tests have them."""

from tests.admin.conftest import log_in, make_user, operator, stage

__all__ = ["log_in", "make_user", "operator", "stage"]
