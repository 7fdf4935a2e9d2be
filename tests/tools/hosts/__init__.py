"""Several hosts on one machine: workers go on while PostgreSQL fails over and Redis is away.

Three hosts with etcd, Patroni, PostgreSQL and Sentinels, and two with workers: `python -m tests.tools.hosts`. Each
address of a host is one of 127.0.0.0/8. The programs are Debian's.
"""
