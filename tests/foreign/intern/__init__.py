"""A project with all at once that others have and durable's own project has not, and a program that walks through it.

Users of its own with UUIDs, another admin site under another prefix, a login for every page, compression, connections
that are kept and are proxies, reads that go to a replica, defaults of the REST framework, and Sentry. Where the
environment says so: a server that has it below a path, ASGI, another theme of the admin, an agent of Datadog's.
"""
