"""kernels_fit: says plainly that the compiled kernels are not those of these Python sources, which otherwise shows as a
call that the module does not take.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import headrace._kernels as _kernels
from headrace.core.errors import MachineError

_SIGNS = ("incompatible function arguments", "_kernels")
"""How the module's calls refuse arguments of other numbers or types than they were compiled for, and what errors say of
names that it lacks."""


@contextmanager
def kernels_fit() -> Iterator[None]:
    """Around calls whose arguments do not come from outside. Raises MachineError in the place of what such calls raise
    where the module is of other sources."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        if not any(sign in str(error) for sign in _SIGNS):
            raise
        raise MachineError(
            f"the compiled kernels ({_kernels.__file__}) are not of these sources: build them again (make kernels)"
        ) from error
