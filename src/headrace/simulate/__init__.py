"""A fleet in virtual time. `headrace.simulate(model=..., gpu=..., workload=...)` calls api.py."""

from headrace.core.callable_package import make_callable

make_callable(__name__)
