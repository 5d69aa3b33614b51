"""How many GPUs a load needs, and what each optimization saves. `headrace.plan(model=..., qps=...)` calls api.py."""

from headrace.core.callable_package import make_callable

make_callable(__name__)
