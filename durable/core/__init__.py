"""The engine's logic: operations, their records and the rules of replay.

Imports the standard library only, never blocks and performs no input or output: an operation is a
generator that yields effects, a driver performs them. The clock, the codec and the store come from outside.
"""
