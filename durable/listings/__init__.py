"""The lists for operators, each declared once, and their JSON for REST and the command line.

`shapes` defines shapes, `listing` defines listings; the other modules declare them. Does not depend on a surface:
`durable.api.base` makes endpoints of listings, and `durable.cli.list_command` subcommands.
"""
