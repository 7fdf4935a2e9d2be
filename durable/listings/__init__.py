"""The lists of operators, each declared once: what REST and the command line read and give as JSON.

`shapes` says what a shape is, `listing` what a listing is; the other modules declare them. Depends on no surface:
`durable.api.list_views` makes endpoints of listings, and `durable.cli.list_command` subcommands.
"""
