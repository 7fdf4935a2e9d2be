"""Conformance: random programs with the traces of a reference engine, played by this one.

`scenarios.jsonl` is data, copied as it is; `grammar` says what its programs are made of, `interpreter` makes workflows
of them, `play` plays their actions, `compare` tells where traces differ. Nothing here knows the engine's inside.
"""
