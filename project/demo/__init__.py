"""The demo: orders flow through real workers while one of them is killed, and the rows are checked at the end.

`environment` brings servers and settings and runs the command once more inside them; `story` is what happens there.
"""
