"""The addresses of durable for people and programs outside: `include("durable.hooks.urls")`.

Nobody logs in here. Who has an address, with the token in it, may use it; the pages show nothing but what it is for.
"""
