"""`python -m tests.benchmarks`: how fast durable is, beside its peers and the database's own limit, in one run.

Owns what is measured and how it is reported. Asserts no time: `test_counts`, the only part that pytest runs, asserts
counts.
"""
