"""The simulator in Python: the keywords of `headrace simulate` are its flags, and what comes back has its figures."""

from headrace.core.callable_package import answers
from headrace.simulate.asking import Asked
from headrace.simulate.result import Result


def _simulate(asked: Asked) -> Result:
    """Latency, goodput and cache hits of a fleet under a trace or a workload. Raises ConfigError or ModelError, naming
    the field and what is allowed."""
    demands, _, _ = asked.times(1.0)
    return asked.run(demands, asked.fleet(demands))


simulate = answers(Asked, _simulate, "simulate")
