"""What people give to the functions that they call is of the types that these say, or is refused by name."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.core.callable_package import answers
from headrace.core.errors import ConfigError

VERBS = {"plan": headrace.plan, "ablate": headrace.ablate, "simulate": headrace.simulate}


@pytest.mark.parametrize(
    ("verb", "name"), [(v, name) for v in VERBS for name in inspect.signature(VERBS[v]).parameters]
)
def test_every_keyword_of_another_type_is_refused_by_its_name(verb: str, name: str) -> None:
    asked = {"model": "llama-3-8b", "gpu": "h100", name: object()}
    with pytest.raises(ConfigError, match=f"^{name} must be .*(str|int|float|bool).*, got <object") as caught:
        VERBS[verb](**asked)
    assert caught.value.field == name


def asked(count: int, seconds: float | None = None, file: str | Path = "", names: tuple[str, ...] = ()) -> object:
    return count, seconds, file, names


given = answers(asked, lambda found: found, "given")


def test_what_means_the_same_is_taken() -> None:
    taken = given(np.int64(3), 2, Path("a"), names=["b"])  # type: ignore[arg-type]
    assert taken == (3, 2.0, Path("a"), ("b",)) and given(3, None) == (3, None, "", ())
    for value in (True, 3.5, "3", None):
        with pytest.raises(ConfigError, match="count must be int, got"):
            given(value)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'cuont'"):
        given(3, cuont=3)  # type: ignore[call-arg]
