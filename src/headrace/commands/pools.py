"""Options of headrace simulate for a fleet of two pools, one of which computes prompts for the other."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import click

from headrace.core.hardware import RACK_NODES
from headrace.policy.disaggregation import MIN_TOKENS
from headrace.simulate.placement import NODES, PLACEMENTS
from headrace.simulate.pools import AS_CACHED, TRANSFER_DTYPES

_OPTIONS = (
    click.option("--prefill-replicas", type=int, help="Instead of --replicas, two pools: so many compute prompts"),
    click.option("--decode-replicas", type=int, help="and so many answer (and compute what is short)."),
    click.option(
        "--transfer-min-tokens",
        type=int,
        help=f"Tokens left to compute from which a prompt goes to the prefill pool. [{MIN_TOKENS}]",
    ),
    click.option("--transfer-dtype", help=f"Of what is sent: {', '.join(TRANSFER_DTYPES)}. [{AS_CACHED}, as cached]"),
    click.option(
        "--incremental-transfer/--no-incremental-transfer",
        default=None,
        help="Send what is computed while the rest is. [yes]",
    ),
    click.option(
        "--placement",
        help=f"{', '.join(PLACEMENTS)}: pools side by side, or each on nodes or in racks of its own. [{NODES}]",
    ),
    click.option("--rack-nodes", type=int, help=f"Nodes of a rack. [{RACK_NODES}]"),
)


def pool_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda wrapped, option: option(wrapped), reversed(_OPTIONS), command)
