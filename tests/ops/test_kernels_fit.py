"""A compiled module of other sources is named as what is wrong; any other error stays what it is."""

from __future__ import annotations

import pytest

import headrace._kernels as _kernels
from headrace.core.errors import MachineError
from headrace.ops.kernels_fit import kernels_fit


def test_a_call_that_the_module_does_not_take_says_to_build_it_again():
    with pytest.raises(MachineError, match=r"_kernels.*build them again"), kernels_fit():
        _kernels.ThreadPool("two", of="other sources")


def test_so_does_a_name_that_it_lacks():
    with pytest.raises(MachineError, match="build them again"), kernels_fit():
        _kernels.added_later()


def test_other_errors_pass():
    with pytest.raises(TypeError, match="takes no keyword"), kernels_fit():
        len(of="nothing")
