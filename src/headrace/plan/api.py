"""The planner in Python: the same keywords as `headrace plan` has flags, and the same figures in what comes back."""

from headrace.core.callable_package import answers
from headrace.plan.ablation import ablate as _ablate
from headrace.plan.asking import ask
from headrace.plan.search import plan as _plan

plan = answers(ask, _plan, "plan")
ablate = answers(ask, _ablate, "ablate")
