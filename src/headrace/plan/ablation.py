"""Ablation: what each optimization saves of a question's fleet: added one after the other to a naive one, and left out
of the whole. One that costs more than it saves is shown and not kept, so that the next are not measured on top of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import ConfigError
from headrace.core.hardware import Hardware
from headrace.plan.optimization import CHUNK, DRAFTS, OPTIMIZATIONS, URGENT, Optimization
from headrace.plan.question import Question
from headrace.plan.recipe import Recipe
from headrace.plan.trial import Trial, Trials, season_mean

Progress = Callable[[str], None]

FIRST = 4
"""Optimizations whose saving together is told apart: the source of plan/million_qps.py says 80 %."""

_SAVES = 0.01  # share of the cost from which on an optimization saves anything
_DRAWN = 0.03  # share of the cost that may be the draw of lengths and the size of a replica
_SHORTER = 0.9  # of a wait, at most, where one is kept for that


@dataclass(frozen=True, slots=True)
class Step:
    """An optimization added to those kept before it. trial: what the fleet came to; saved: share of the cost before.
    other: the whole without it, or with it if it was not kept; alone: US dollars an hour that the whole costs less
    with it. None where no such fleet serves the question."""

    optimization: Optimization
    kept: bool
    trial: Trial | None
    saved: float | None
    other: Trial | None
    alone: float | None

    def figures(self) -> dict[str, Any]:
        return {
            "optimization": self.optimization.name,
            "kept": self.kept,
            "by": self.optimization.how,
            "effort": self.optimization.effort,
            **(_none() if self.trial is None else self.trial.figures()),
            "saved_share": None if self.saved is None else round(self.saved, 4),
            "left_out" if self.kept else "with_it": None if self.other is None else self.other.figures(),
            "saves_usd_per_hour": None if self.alone is None else round(self.alone + 0.0, 2),
        }


@dataclass(frozen=True, slots=True)
class Ablation:
    """naive, whole: before the first and after the last of the steps; naive is None where no such fleet serves it."""

    question: Question
    gpu: Hardware
    naive: Trial | None
    steps: tuple[Step, ...]
    whole: Trial

    @property
    def first_saved(self) -> float | None:
        """Share of the naive fleet's cost that the first FIRST save together."""
        after = next((s.trial for s in reversed(self.steps[:FIRST]) if s.kept and s.trial is not None), None)
        if self.naive is None:
            return None
        return 0.0 if after is None else 1 - after.cost / self.naive.cost

    @property
    def first_to_do(self) -> list[Step]:
        """What is worth doing, the most saved for each grade of effort first; what saves nothing itself comes
        last, and what costs something beside those kept after it is not there."""
        kept = [step for step in self.steps if step.kept and (step.alone or 0.0) >= -_DRAWN * self.whole.cost]
        return sorted(kept, key=lambda step: -max(step.alone or 0.0, 0.0) / step.optimization.effort)

    @property
    def costs(self) -> dict[str, float]:
        """US dollars an hour of the naive fleet, after each optimization that was kept, and of the whole."""
        kept = [(s.optimization.name, s.trial.cost) for s in self.steps if s.kept and s.trial is not None]
        naive = [] if self.naive is None else [("naive", self.naive.cost)]
        return dict([*naive, *kept, ("whole", self.whole.cost)])

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.question.name,
            "gpu": self.gpu.name,
            "naive": _none() if self.naive is None else self.naive.figures(),
            "steps": [step.figures() for step in self.steps],
            "whole": self.whole.figures(),
            "assumed": assumed(self.question),
            "first_four_saved_share": None if self.first_saved is None else round(self.first_saved, 4),
            "what_to_do_first": [
                {
                    "optimization": step.optimization.name,
                    "effort": step.optimization.effort,
                    "saves_usd_per_hour": None if step.alone is None else round(step.alone + 0.0, 2),
                }
                for step in self.first_to_do
            ],
        }


def ablate(question: Question, *, progress: Progress = lambda line: None) -> Ablation:
    """GPUs, cost and waits as optimizations are added, and without each. ConfigError where none serves the question, or
    several GPUs are given."""
    if len(question.gpus) != 1:
        names = ", ".join(gpu.name for gpu in question.gpus)
        raise ConfigError(f"an ablation is of one gpu, got {names}", field="gpu")
    (gpu,) = question.gpus
    trials = Trials(question, gpu)
    progress("naive")
    naive, broken = _tried(trials, Recipe())
    kept: list[Optimization] = []
    added: list[tuple[Optimization, bool, Trial | None, float | None]] = []
    before = naive
    for optimization in OPTIMIZATIONS:
        progress(f"with {optimization.name}")
        trial, reason = _tried(trials, _recipe([*kept, optimization], gpu))
        broken = broken if reason is None else reason
        # Where no fleet serves the question yet, nothing can be told of what is added: it is kept.
        worth = before is None or (trial is not None and _worth(optimization, before, trial))
        saved = None if trial is None or before is None else 1 - trial.cost / before.cost
        added.append((optimization, worth, trial, saved))
        if worth:
            kept.append(optimization)
            before = trial
    if before is None:
        assert broken is not None, "without a trial there is a reason"
        raise broken
    steps = []
    for optimization, worth, trial, saved in added:
        progress(f"{'without' if worth else 'with'} {optimization.name}")
        changed = [o for o in OPTIMIZATIONS if (o in kept) != (o is optimization)]
        other, _ = _tried(trials, _recipe(changed, gpu))
        alone = None if other is None else (other.cost - before.cost) * (1 if worth else -1)
        steps.append(Step(optimization, worth, trial, saved, other, alone))
    return Ablation(question, gpu, naive, tuple(steps), before)


def assumed(question: Question) -> dict[str, Any]:
    """What the figures rest on beside the question."""
    return {
        "lengths": "as in the trace" if question.load.demands else "geometric about the means, to 4 times them",
        "replica": f"at 1/{1 + question.limits.headroom:g} of the rate that it sustains, arrivals at random",
        "drafts": f"{DRAFTS} a step for nothing, each accepted with {question.limits.accepted:g}",
        "chunk": f"{CHUNK} tokens of a step",
        "priority": f"{100 * URGENT:g} % of requests are urgent, the waits are theirs; others fill what is left",
        "season": f"a day's wave and weekends: {100 * season_mean():.0f} % of the peak's replicas in the mean",
    }


def _recipe(optimizations: Sequence[Optimization], gpu: Hardware) -> Recipe:
    recipe = Recipe()
    for optimization in optimizations:
        recipe = optimization.apply(recipe, gpu)
    return recipe


def _tried(trials: Trials, recipe: Recipe) -> tuple[Trial | None, ConfigError | None]:
    """What a recipe comes to, or why it does not."""
    try:
        return trials.of(recipe), None
    except ConfigError as error:
        return None, error


def _worth(optimization: Optimization, before: Trial, after: Trial) -> bool:
    """Whether it saves; or costs nothing, and is what others need or makes waits shorter. Not if first tokens no longer
    come in time."""
    if before.in_time and not after.in_time:
        return False
    if after.cost <= before.cost * (1 - _SAVES):
        return True
    if optimization.kept_for == "saving" or after.cost > before.cost * (1 + _SAVES):
        return False
    if optimization.kept_for == "others":
        return True
    waits = ((before.waits.ttft_p99, after.waits.ttft_p99), (before.waits.stall, after.waits.stall))
    return any(now <= _SHORTER * then for then, now in waits)


def _none() -> dict[str, Any]:
    """The figures of a fleet that cannot be."""
    names = ("gpus", "cost_per_hour_usd", "ttft_ms", "itl_p99_ms", "max_stall_ms", "keeps_slo")
    return dict.fromkeys((*names, "tensor_parallel_size", "max_num_seqs"))
