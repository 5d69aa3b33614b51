"""What both processes of a server ask of Python's garbage collector once they are loaded: to leave alone what stays,
and not to search, with all streams waiting, for cycles among objects that are made and dropped in bulk.
"""

import gc

_THRESHOLD = 50_000
"""Containers that may be made, beyond those dropped again, before Python looks for cycles. At the default of hundreds,
a step's messages or the lists of one large request body alone start collections, each a pause for everyone."""


def settle() -> None:
    """Call after loading: what exists now lives as long as the process and is never looked at again."""
    gc.freeze()
    gc.set_threshold(_THRESHOLD)
