"""The command line: `manage.py durable <subcommand>`, the same verbs as on every surface, for shells and pipes.

Each module of this package holds a few subcommands; `durable.cli.subcommands` lists them all. The common rules:

- Standard output is for data: a table, JSON lines (`-o json`) or ids (`-o ids`). Messages go to standard error.
- Foreign text (ids, payloads, errors) is shown with control characters escaped, so that no terminal obeys it.
- The exit status gives the result; see `durable.cli.output`.
- The subcommands hold no logic: they parse, call `durable.operations` or `durable.inspection`, and print.
"""
