"""Joining weights by rows: several tensors of a file that are one matrix in the program. Where they are stored in
different types, the joined matrix has the nearest scheme that holds all of them.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.models.formats.quantize import GROUP, to_q8
from headrace.models.formats.weight_source import Form
from headrace.ops.matrix import Matrix


def join(parts: Sequence[Matrix]) -> Matrix:
    """Rows of all parts, one part after the other. Parts of one kind stay as they are; quantized ones of different
    kinds become q8 with a scale per 32; where any is float, all are widened to float32."""
    if len(parts) == 1:
        return parts[0]
    form = joined_form([Form(m.scheme, m.scheme, m.group, m.stored_as) for m in parts])
    if len({(m.scheme, m.group) for m in parts}) > 1:
        parts = [_as_q8(m) if form.scheme == "q8" else widen(m) for m in parts]
    return replace(_concatenate(parts), stored_as=form.stored_as)


def joined_form(forms: Sequence[Form]) -> Form:
    """What join() makes of parts of these forms."""
    stored = " and ".join(sorted({form.stored for form in forms}))
    shown = " and ".join(sorted({form.stored_as or form.scheme for form in forms}))
    schemes = {form.scheme for form in forms}
    if len({(form.scheme, form.group) for form in forms}) == 1:
        return Form(stored, forms[0].scheme, forms[0].group, shown if any(form.stored_as for form in forms) else "")
    return Form(stored, "q8", GROUP, shown) if schemes <= {"q4", "q8"} else Form(stored, "f32", 0, shown)


def widen(matrix: Matrix) -> Matrix:
    """The same values in float32."""
    return matrix if matrix.scheme == "f32" else Matrix("f32", matrix.n, matrix.k, matrix.dequantize())


def _as_q8(matrix: Matrix) -> Matrix:
    """q8 with a scale per 32: exact for q8, the nearest for q4."""
    if matrix.scheme == "q4":
        return to_q8(matrix.n, matrix.k, lambda rows: rows_of(matrix, rows).dequantize(), "q4")
    assert matrix.scale is not None
    return replace(matrix, group=GROUP, scale=np.repeat(matrix.scale, matrix.group // GROUP, axis=1))


def rows_of(matrix: Matrix, rows: slice) -> Matrix:
    """Some rows, as views."""
    scale = None if matrix.scale is None else matrix.scale[rows]
    minimum = None if matrix.minimum is None else matrix.minimum[rows]
    data = matrix.data[rows]
    return replace(matrix, n=len(data), data=data, scale=scale, minimum=minimum)


def _concatenate(parts: Sequence[Matrix]) -> Matrix:
    scales = [p.scale for p in parts if p.scale is not None]
    minima = [p.minimum for p in parts if p.minimum is not None]
    return replace(
        parts[0],
        n=sum(p.n for p in parts),
        data=np.concatenate([p.data for p in parts]),
        scale=np.concatenate(scales) if scales else None,
        minimum=np.concatenate(minima) if minima else None,
    )
