"""The peers, each used as its documentation recommends, each in a process and a database of its own."""
