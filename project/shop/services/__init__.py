"""The world outside the shop: a bank, a carrier, the post and an archive of pictures, all of them fakes.

Honest ones: each does what it is asked as often as it is asked, unless it is given the same idempotency key again.
Nothing in here stops a careless shop from charging a card twice. Each can be broken and mended with a `Fault`.
The shop calls the functions of this package and never touches its rows.
"""
