"""Ablation: what each optimization saves of a question's GPUs, one by one from naive and by leaving one out."""

from __future__ import annotations

from headrace.core.errors import ConfigError
from headrace.plan.answer import Figures
from headrace.plan.question import Question


def ablate(question: Question) -> Figures:
    """GPUs, cost and latencies as optimizations are added, and without each."""
    raise ConfigError(f"the ablation of {question.name} is not computed yet", field="ablation")
