"""A project whose tests are executed again with deaths, by a pytest of its own: `tests/testing/test_deaths.py`.

Its modules are named so that no other session collects them.
"""
