"""The read side: what the admin, REST and the command line show, defined once for all three.

Reads rows through the ORM and RQ's registry; changes nothing, and depends on no surface. Every list pages by key, every
count has a stated cap, and no query reads more as the tables grow. `payloads` alone decodes and redacts payloads; the
surfaces check who may see them. A surface that limits which runs a user sees passes a queryset as `within`.
"""
