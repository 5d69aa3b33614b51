"""Counter-based Gumbel noise, and the float32 exp and log that sampling rests on. Every function here is a fixed
sequence of correctly rounded float32 operations, so csrc/sampling.cpp computes the same bits on every machine.

The noise of a token is a pure function of (seed, choice, position, token id): Philox4x32-10 (Salmon et al., SC'11)
with the seed as key and (token id / 4, position, choice, 0) as counter; token id % 4 picks the word.
"""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Word = npt.NDArray[np.uint32]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF_WORD = np.uint64(32)

_F = np.float32
_LN2_HIGH, _LN2_LOW = _F(0.693359375), _F(-2.12194440e-4)
# Cephes expf and logf.
_EXP = tuple(map(_F, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)))
_LOG = tuple(
    map(
        _F,
        (
            7.0376836292e-2,
            -1.1514610310e-1,
            1.1676998740e-1,
            -1.2420140846e-1,
            1.4249322787e-1,
            -1.6668057665e-1,
            2.0000714765e-1,
            -2.4999993993e-1,
            3.3333331174e-1,
        ),
    )
)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_SQRT_HALF = _F(0.70710678)


def exp(x: FloatArray) -> FloatArray:
    """e**x for x <= 0; anything below -80 counts as -80."""
    x = np.maximum(x, _F(-80))
    n = (x * _F(1.44269504) - _F(0.5)).astype(np.int32)
    whole = n.astype(np.float32)
    r = x - whole * _LN2_HIGH
    r = r - whole * _LN2_LOW
    p = np.full_like(r, _EXP[0])
    for coefficient in _EXP[1:]:
        p = p * r + coefficient
    p = p * (r * r) + r + _F(1)
    result: FloatArray = p * ((n + np.int32(127)) << np.int32(23)).view(np.float32)
    return result


def log(x: FloatArray) -> FloatArray:
    """Natural logarithm of positive normal numbers."""
    bits = x.view(np.int32) - _SQRT_HALF_BITS
    mantissa = ((bits & np.int32(0x007FFFFF)) + _SQRT_HALF_BITS).view(np.float32)
    return _log1p(mantissa - _F(1), (bits >> np.int32(23)).astype(np.float32))


def _log1p(f: FloatArray, exponent: FloatArray) -> FloatArray:
    """log(1 + f) + exponent * ln 2, for f from sqrt(1/2) - 1 to sqrt(2) - 1."""
    p = np.full_like(f, _LOG[0])
    for coefficient in _LOG[1:]:
        p = p * f + coefficient
    square = f * f
    y: FloatArray = p * f * square + exponent * _LN2_LOW - square * _F(0.5)
    return f + y + exponent * _LN2_HIGH


def gumbel(word: Word) -> FloatArray:
    """Standard Gumbel noise -log(-log(u)), u = (word / 2 + 1/2) / 2**31. Near u = 1 the distance to 1 is taken
    from the integer, so that the upper tail (to 22.2) is as fine as the lower."""
    half = (word >> np.uint32(1)).astype(np.int32)
    u = (half.astype(np.float32) + _F(0.5)) * _F(2.0**-31)
    below_one = ((np.int32(0x7FFFFFFF) - half).astype(np.float32) + _F(0.5)) * _F(2.0**-31)
    near = _log1p(-below_one, np.zeros_like(u))
    exponential = -np.where(u > _SQRT_HALF, near, log(u))
    return -log(exponential)


def philox(counter: tuple[Word, int, int, int], seed: int) -> Word:
    """Philox4x32-10: uint32 [..., 4] for the counters, keyed by a 64-bit seed."""
    first = counter[0].astype(np.uint64)
    c0, c1, c2, c3 = (first, *(np.full_like(first, word & 0xFFFFFFFF) for word in counter[1:]))
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(10):
        low_product, high_product = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (high_product >> _HALF_WORD) ^ c1 ^ np.uint64(key[0]),
            high_product & _LOW,
            (low_product >> _HALF_WORD) ^ c3 ^ np.uint64(key[1]),
            low_product & _LOW,
        )
        key = [(word + weyl) & 0xFFFFFFFF for word, weyl in zip(key, _WEYL, strict=True)]
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def gumbel_row(seed: int, choice: int, position: int, vocab_size: int) -> FloatArray:
    """float32 [vocab_size]: the noise of every token at one position of one choice."""
    blocks = np.arange(-(-vocab_size // 4), dtype=np.uint32)
    return gumbel(philox((blocks, position, choice, 0), seed).reshape(-1)[:vocab_size])
