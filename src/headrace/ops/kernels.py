"""The compiled kernels, known to be those of the sources they lie beside. Others would show later, as a call that the
module does not take, or not at all: as wrong numbers. An installed package has no such sources, and no others.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from headrace.core.errors import MachineError

try:
    import headrace._kernels as _kernels
except ModuleNotFoundError:
    raise MachineError("the kernels are not compiled: build them (make kernels)") from None

kernels: Any = _kernels


def sources_digest(root: Path) -> str:
    """Stands for what the kernels under root are compiled from, as CMakeLists.txt computes it."""
    files = [root / "CMakeLists.txt", *sorted((root / "csrc").glob("*.cpp")), *sorted((root / "csrc").glob("*.h"))]
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def check_kernels(module: Any, root: Path) -> None:
    """MachineError where root has sources of kernels that the module is not compiled from."""
    if (root / "csrc").is_dir() and getattr(module, "SOURCES", None) != sources_digest(root):
        raise MachineError(
            f"the compiled kernels ({module.__file__}) are not of the sources in {root / 'csrc'}: build them again "
            "(make kernels)"
        )


check_kernels(kernels, Path(__file__).parents[3])
