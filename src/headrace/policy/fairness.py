"""Virtual token counters: what each tenant was given, in tokens computed for it divided by its weight. Whoever was
given least is served next, and a tenant that comes new or back from idleness starts where the least served of those
that wait stands, so that nobody saves up a claim. After Sheng et al., Fairness in Serving Large Language Models (OSDI
2024).

Tokens that came from the prefix cache cost nothing, nor do tokens computed again after a preemption. Counters only
rise.
"""

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from headrace.core.batch import IntArray


class Accounts:
    """One counter for each tenant in each priority class, by a small number that open() gives. weight: a tenant's share
    beside the others', above 0; 1 for all if it is not given."""

    def __init__(self, weight: Callable[[str], float] | None = None) -> None:
        self._weight = weight
        self._numbers: dict[tuple[int, str], int] = {}
        self._unused: list[int] = []
        self._given: npt.NDArray[np.float64] = np.zeros(8)
        self._cost_of_token: npt.NDArray[np.float64] = np.ones(8)

    def __len__(self) -> int:
        return len(self._numbers)

    def open(self, priority: int, tenant: str) -> int:
        key = (priority, tenant)
        number = self._numbers.get(key)
        if number is not None:
            return number
        number = self._unused.pop() if self._unused else len(self._numbers)
        if number >= len(self._given):
            self._given = np.concatenate([self._given, np.zeros_like(self._given)])
            self._cost_of_token = np.concatenate([self._cost_of_token, np.ones_like(self._cost_of_token)])
        self._given[number] = 0.0
        self._cost_of_token[number] = 1.0 if self._weight is None else 1.0 / self._weight(tenant)
        self._numbers[key] = number
        return number

    def given(self, account: int) -> float:
        return float(self._given[account])

    def lift(self, account: int, least: float) -> None:
        self._given[account] = max(self._given[account], least)

    def charge(self, account: int, tokens: int) -> None:
        self._given[account] += tokens * self._cost_of_token[account]

    def charge_all(self, accounts: IntArray, tokens: IntArray) -> None:
        """tokens[i] to accounts[i]; an account may come up several times."""
        sums = np.bincount(accounts, tokens, minlength=len(self._given))
        self._given += sums * self._cost_of_token

    def close_all_but(self, used: Collection[int]) -> None:
        """Forget the counters of tenants that neither wait nor run."""
        for key, number in list(self._numbers.items()):
            if number not in used:
                del self._numbers[key]
                self._unused.append(number)
