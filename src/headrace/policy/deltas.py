"""From a step's rows to what each request is sent. Tokens of all rows are turned at once; log-probabilities only
for the rows that asked.
"""

from collections.abc import Iterable

from headrace.core.batch import BatchOutput
from headrace.core.request import OutputDelta, TokenLogprobs


def named(request_ids: list[str], tokens: list[int]) -> list[OutputDelta]:
    """One delta for each sampled token."""
    return list(map(OutputDelta, request_ids, [[token] for token in tokens]))


def logprobs(output: BatchOutput, row: int, top: int) -> TokenLogprobs:
    """The log-probability of logit row `row`, with the `top` likeliest tokens. Raises ValueError if the executor
    reported none."""
    if output.logprob is None or output.rank is None:
        raise ValueError(f"step {output.step}: log-probabilities were asked for but the executor brought none")
    likeliest: Iterable[tuple[int, float]] = ()
    if output.top_ids is not None and output.top_logprobs is not None:
        likeliest = zip(output.top_ids[row, :top].tolist(), output.top_logprobs[row, :top].tolist(), strict=True)
    return TokenLogprobs(
        int(output.tokens[row]),
        float(output.logprob[row]),
        int(output.rank[row]),
        [(token, value) for token, value in likeliest if token >= 0],
    )
