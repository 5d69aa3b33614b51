"""The noise behind sampling: Philox against its published vectors, exp and log against float64, Gumbel's moments."""

from __future__ import annotations

import numpy as np

from headrace.ops import noise


def test_philox_gives_the_published_vectors() -> None:
    zero = noise.philox((np.zeros(1, np.uint32), 0, 0, 0), 0)
    assert zero.tolist() == [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]
    ones = noise.philox((np.full(1, 0xFFFFFFFF, np.uint32), 2**32 - 1, 2**32 - 1, 2**32 - 1), 2**64 - 1)
    assert ones.tolist() == [[0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]]
    pi = noise.philox((np.full(1, 0x243F6A88, np.uint32), 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0_A4093822)
    assert pi.tolist() == [[0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]]


def test_exp_and_log_are_within_two_ulp() -> None:
    x = -np.random.default_rng(0).uniform(0, 79, 100_000).astype(np.float32)
    assert np.abs(noise.exp(x) / np.exp(x.astype(np.float64)) - 1).max() < 2 * 2.0**-23
    y = np.exp(np.random.default_rng(1).uniform(-80, 80, 100_000)).astype(np.float32)
    exact = np.log(y.astype(np.float64))
    assert np.abs((noise.log(y) - exact) / np.maximum(np.abs(exact), 1)).max() < 2 * 2.0**-23
    assert noise.log(np.ones(1, np.float32))[0] == 0
    assert noise.exp(np.zeros(1, np.float32))[0] == 1


def test_gumbel_has_its_moments_and_a_fine_upper_tail() -> None:
    sample = noise.gumbel_row(seed=7, choice=0, position=3, vocab_size=1 << 18)
    assert abs(sample.mean() - np.euler_gamma) < 0.01
    assert abs(sample.std() - np.pi / np.sqrt(6)) < 0.01
    words = np.array([0, 0x80000000, 0xB504F333, 0xFFFFFFFD, 0xFFFFFFFF], np.uint32)
    exact = -np.log(-np.log(((words >> 1) + 0.5) / 2.0**31))
    np.testing.assert_allclose(noise.gumbel(words), exact, rtol=1e-6)


def test_noise_of_a_token_does_not_depend_on_the_vocabulary() -> None:
    assert np.array_equal(noise.gumbel_row(1, 2, 3, 1001)[:77], noise.gumbel_row(1, 2, 3, 77))


def test_seed_choice_and_position_each_change_the_noise() -> None:
    base = noise.gumbel_row(1, 0, 0, 64)
    for other in ((2, 0, 0), (1 + (1 << 32), 0, 0), (1, 1, 0), (1, 0, 1)):
        assert not np.any(noise.gumbel_row(*other, 64) == base)
