"""Names of blocks that hold anywhere: a hash over a namespace and all tokens up to a block's end. By them blocks are
found on disk after a restart, and routers know which replica holds what. 128 bits of BLAKE2b, so that two prefixes
do not share a name even if somebody tries.
"""

import hashlib

SIZE = 16
"""Bytes of a name."""


def namespace(fingerprint: str, salt: str) -> bytes:
    """Where a chain starts: blocks are equal only if computed alike, and shared only under the same salt."""
    return hashlib.blake2b(f"{len(fingerprint)} {fingerprint} {salt}".encode(), digest_size=SIZE).digest()


def links(before: bytes, data: bytes, width: int) -> list[bytes]:
    """The names of the whole blocks in data (each of `width` bytes), of which the first follows the block `before`."""
    names = []
    for at in range(0, len(data) - width + 1, width):
        before = hashlib.blake2b(data[at : at + width], key=before, digest_size=SIZE).digest()
        names.append(before)
    return names
