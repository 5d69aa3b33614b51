"""Inputs that are nearly right: bytes of a good one with some changed, cut, doubled or put elsewhere."""

from __future__ import annotations

from hypothesis import strategies as st

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from([0, 1, -1, 255, 2**31, 2**63, "", "\x00", "a" * 200, [], {}, [[]], "1", "true", 1e308]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def nearly(draw: st.DrawFn, good: bytes, *, within: int | None = None) -> bytes:
    """good with up to four changes in its first `within` bytes."""
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, min(within or len(data), len(data)) - 1)))
        size = draw(st.sampled_from([1, 1, 2, 4, 8, 16]))
        match draw(st.sampled_from(["set", "set", "insert", "delete", "copy", "cut"])):
            case "set":
                values = st.binary(min_size=size, max_size=size)
                extremes = st.sampled_from([b"\x00" * size, b"\xff" * size, b"\x7f" + b"\xff" * (size - 1)])
                data[at : at + size] = draw(values | extremes)
            case "insert":
                data[at:at] = draw(st.binary(max_size=size))
            case "delete":
                del data[at : at + size]
            case "copy":
                data[at:at] = data[draw(st.integers(0, len(data))) :][:size]
            case "cut":
                del data[at + 1 :]
    return bytes(data)
