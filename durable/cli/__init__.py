"""The command line: `manage.py durable <subcommand>`, the same verbs as everywhere, for shells and pipes.

Each module of this package holds a few subcommands; `durable.cli.subcommands` lists them all. What they share:

- Standard output is for data: a table, JSON lines (`-o json`) or ids (`-o ids`). All talk goes to standard error.
- Text of others (ids, payloads, errors) is shown with control characters escaped, and never as the terminal's commands.
- The exit status says what came of it; see `durable.cli.exit_codes`.
- They hold no logic: they parse, call `durable.operations` or `durable.inspection`, and print.
"""
