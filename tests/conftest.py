"""Fixtures that several rooms share: the default model and the test data, both skipped where they cannot be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from headrace.core.config import DEFAULT_MODEL
from headrace.core.errors import ModelError
from headrace.models import sources
from headrace.policy.row_cost import RowCost

# The same examples in every run, and no limit on the time of one: a crowded machine proves nothing.
settings.register_profile("headrace", deadline=None, derandomize=True)
# For `make fuzz`: other examples in each run, and many more.
settings.register_profile("fuzz", deadline=None, max_examples=5000)
settings.load_profile("headrace")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, fetched once into the cache."""
    try:
        return sources.locate(DEFAULT_MODEL, quiet=True)
    except ModelError as error:
        pytest.skip(f"the default model cannot be had here: {error}")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Test data: HEADRACE_DATA, or shared/data beside the project."""
    folder = Path(os.environ.get("HEADRACE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}; set HEADRACE_DATA")
    return folder


@pytest.fixture
def free_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every guess is worth computing, whatever the machine takes for it: what is guessed hangs on no clock."""
    monkeypatch.setattr(RowCost, "seconds", lambda cost, rows, drafted=False: 1.0)
    monkeypatch.setattr(RowCost, "knows", lambda cost, rows: True)
    monkeypatch.setattr(RowCost, "reach", lambda cost, rows: 512)
