"""The pure engine: operations, their records and the rules of replay.

Imports the standard library only, never blocks and performs no input or output. The clock, the codec and the store come
from outside (`journal.Environment`).

How to read it. An operation (`steps`, `messages`, `loops`, `branches`, ...) is a generator. It yields an effect
(`effects`); a driver (`durable.drivers`) performs the effect and sends back its answer, or throws its error. `run_pass`
is the operation of a whole pass. `replay_cursor` decides which recorded entry an operation matches, `scope` whether an
operation may begin, and `journal` has the history and the changes that the next commit writes.

The files beside the packages are the kernel. A feature that no plain run needs has a room of its own: `children`,
`limits`, `names` (which have changed), and `rewind`, which changes histories outside of a pass.
"""
