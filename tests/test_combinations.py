"""Guesses change nothing, whatever they are combined with: every sampling parameter, forms and calls, stops, choices,
priorities, clients that leave while a step is under way, preemption, swapping and lower tiers, chunks, warm caches,
windows, every quantization, several steps under way and steps that fail. Drawn together; `make combinations` goes on
for long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from tests import combinations
from tests.combinations import WORLDS, Asked, Setup, check

from headrace.policy import speculation


@pytest.fixture(autouse=True)
def stubborn(monkeypatch: pytest.MonkeyPatch, free_rows: None) -> Iterator[None]:
    """Guesses are made however often they fail."""
    monkeypatch.setattr(speculation._Record, "trust", lambda *_: 1.0)
    yield
    combinations.forget_devices()


@settings(max_examples=settings.default.max_examples // 4, suppress_health_check=list(HealthCheck))
@given(world=WORLDS)
def test_no_token_changes(world: tuple[list[Asked], Setup]) -> None:
    check(*world)
