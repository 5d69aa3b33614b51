"""Charsmap: SentencePiece's compiled normalization rules, as a function from text to text. The rules are a
double-array trie of source strings and a block of results; at each place the longest source that fits is replaced.

The trie is walked once into a dictionary, and a pattern finds the few places where a rule can begin, so that plain
text costs one pass of the regular expression engine.
"""

import re
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelError

_BYTES = np.arange(1, 256, dtype=np.uint32)
_MAX_DEPTH = 64
_MAX_NODES = 1 << 20  # paths may share their ends, so there can be more than units


class Charsmap:
    """data: `precompiled_charsmap` of a model. Raises ModelError, naming path, if it is torn."""

    def __init__(self, data: bytes, path: Path) -> None:
        self._rules = _rules(data, path)
        self._longest = max(map(len, self._rules), default=0)
        self._pattern = _places(self._rules)

    def __call__(self, text: str) -> str:
        return self._pattern.sub(self._replace, text)

    def _replace(self, match: re.Match[str]) -> str:
        """A place where a rule may begin: at each character of it the longest rule, or the character itself."""
        text, out, position = match[0], [], 0
        while position < len(text):
            for length in range(min(self._longest, len(text) - position), 0, -1):
                result = self._rules.get(text[position : position + length])
                if result is not None:
                    out.append(result)
                    position += length
                    break
            else:
                out.append(text[position])
                position += 1
        return "".join(out)


def _places(rules: dict[str, str]) -> re.Pattern[str]:
    """Matches a character with a rule of its own, or one that begins a rule, with all that can continue one."""
    alone = _class({source for source in rules if len(source) == 1})
    begin = _class({source[0] for source in rules if len(source) > 1})
    inside = _class({char for source in rules if len(source) > 1 for char in source[1:]})
    return re.compile(f"(?:{begin}{inside}|{alone}){inside}*" if begin != "(?!)" else alone)


def _class(characters: set[str]) -> str:
    return f"[{''.join(map(re.escape, sorted(characters)))}]" if characters else "(?!)"


def _rules(data: bytes, path: Path) -> dict[str, str]:
    if not data:
        return {}
    size = struct.unpack_from("<I", data)[0] if len(data) >= 4 else 0
    if size < 4 or size % 4 or 4 + size > len(data):
        raise ModelError(f"{path}: the precompiled charsmap is torn: a trie of {size} bytes in {len(data)}")
    units = np.frombuffer(data, "<u4", size // 4, 4)
    results = data[4 + size :]
    try:
        return {source.decode(): _result(results, place) for source, place in _sources(units, path)}
    except (UnicodeDecodeError, IndexError) as error:
        raise ModelError(f"{path}: the precompiled charsmap is torn: {error}") from error


def _result(results: bytes, place: int) -> str:
    end = results.find(b"\0", place)
    if place >= len(results) or end < 0:
        raise IndexError(f"a result lies outside ({place} of {len(results)})")
    return results[place:end].decode()


def _sources(units: npt.NDArray[np.uint32], path: Path) -> list[tuple[bytes, int]]:
    """(source, place of its result) of every entry of a Darts-clone double array, level by level."""
    found: list[tuple[bytes, int]] = []
    keys, nodes = [b""], np.zeros(1, np.uint32)
    seen = 0
    for _ in range(_MAX_DEPTH):
        offsets = _offsets(units[nodes])
        bases = nodes ^ offsets
        for i in np.flatnonzero((units[nodes] >> 8) & 1):
            if bases[i] < len(units):
                found.append((keys[i], int(units[bases[i]] & 0x7FFFFFFF)))
        children = bases[:, None] ^ _BYTES
        inside = np.where(children < len(units), children, 0)
        parents, which = np.nonzero((children < len(units)) & ((units[inside] & 0x800000FF) == _BYTES))
        keys = [keys[parent] + bytes([byte + 1]) for parent, byte in zip(parents, which, strict=True)]
        nodes = children[parents, which]
        seen += len(nodes)
        if not len(nodes):
            return found
        if seen > _MAX_NODES:
            break
    raise ModelError(f"{path}: the precompiled charsmap is torn: its trie does not end")


def _offsets(units: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    shifts = (units & np.uint32(1 << 9)) >> np.uint32(6)
    return (units >> np.uint32(10)) << shifts
