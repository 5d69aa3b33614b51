"""headrace plan: how many GPUs a load needs, what they cost, which limit binds, and what each optimization saves."""

from pathlib import Path
from typing import Any

import click

from headrace.bench.picture import draw_waterfall
from headrace.commands.plan_answer import show_plan
from headrace.commands.plan_tables import show_ablation, show_catalogue, show_claims
from headrace.commands.report import EXISTING_FILE, json_option, plot_option, write_json
from headrace.plan import napkin
from headrace.plan.ablation import ablate
from headrace.plan.asking import ask
from headrace.plan.catalogue import catalogue
from headrace.plan.search import plan as search


def _prices(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, float]:
    prices = {}
    for value in values:
        gpu, _, price = value.partition("=")
        try:
            prices[gpu] = float(price)
        except ValueError:
            raise click.BadParameter(f"must be GPU=USD, such as h100=2.5, got {value!r}") from None
    return prices


@click.command()
@click.option("--model", help="A published model, as the hub writes it; --list shows them.")
@click.option("--gpu", help="One or several with commas between: the cheapest is chosen. [h100]")
@click.option("--qps", type=float, help="Requests a second.")
@click.option("--input-len", type=int, help="Tokens of a prompt, the prefix not counted. [200]")
@click.option("--output-len", type=int, help="Tokens of an answer. [200]")
@click.option("--prefix-len", type=int, help="Tokens, in addition, with which every prompt begins. [0]")
@click.option("--trace", type=EXISTING_FILE, help="A file of requests to take times and lengths from.")
@click.option("--rate-multiplier", type=float, help="With --trace: times as many requests a second. [1]")
@click.option("--concurrent-users", type=float, help="Instead of --qps: users at once.")
@click.option("--think-time-s", type=float, help="Of a user, between an answer and the next question. [0]")
@click.option("--slo-ttft-ms", type=float, help="Longest time to the first token. [1000]")
@click.option("--slo-tpot-ms", type=float, help="Longest time of each token after it, in the mean of an answer. [50]")
@click.option("--slo-percentile", type=float, help="Percentile of requests that keep both. [99]")
@click.option("--price", multiple=True, callback=_prices, help="GPU=USD an hour, in place of the price known here.")
@click.option("--precision", help="Of the weights: bf16, fp8, int8, int4, fp4. [what keeps the quality]")
@click.option("--kv-cache-dtype", help="bf16, fp8 or int8. [what keeps the quality]")
@click.option("--max-tp", type=int, help="Tensor parallel size at most. [8]")
@click.option("--max-pp", type=int, help="Pipeline stages at most. [8]")
@click.option("--max-num-batched-tokens", type=int, help="Tokens of a step at most. [the best of 512 to 8192]")
@click.option("--num-speculative-tokens", type=int, help="Draft tokens a step; 0: no speculation. [the better]")
@click.option("--acceptance", type=float, help="Share of draft tokens that hold. [0.6]")
@click.option("--speculative-model", help="Published model that guesses. [a layer trained on top of the model]")
@click.option("--pools", help="unified: each replica does both; split: prefill and decode apart. [the better]")
@click.option("--headroom", type=float, help="Replicas more than the load needs, as a share of them. [0.1]")
@click.option("--seed", type=int, help="Of the simulated arrivals. [0]")
@click.option("--simulate/--no-simulate", default=True, help="Try the best few with the real scheduler. [yes]")
@click.option("--list", "listed", is_flag=True, help="Show the models and GPUs that are known.")
@click.option("--example", help="Show a known calculation line by line: million-qps.")
@click.option("--ablation", is_flag=True, help="Show what each optimization saves.")
@plot_option
@json_option
def plan(
    listed: bool,
    example: str | None,
    ablation: bool,
    plot: Path | None,
    json_file: Path | None,
    **asked: Any,
) -> None:
    """How many GPUs a load needs under limits of latency, what they cost, and which limit binds."""
    if plot is not None and not ablation:
        raise click.UsageError("--plot draws an --ablation: give both, or --json FILE for the figures")
    if listed:
        known = catalogue()
        show_catalogue(known)
        write_json(known, json_file)
        return
    if example is not None:
        claims = napkin.example(example)
        show_claims(claims)
        write_json({"example": example, "rows": [claim.to_dict() for claim in claims]}, json_file)
        return
    if asked["model"] is None:
        raise click.UsageError("give --model; --list shows those that are known")
    question = ask(**{name: value for name, value in asked.items() if value is not None})
    if ablation:
        found = ablate(question, progress=_say)
        show_ablation(found)
        write_json(found.to_dict(), json_file)
        if plot is not None:
            draw_waterfall(plot, f"{found.question.name} on {found.gpu.name}: USD an hour", found.costs)
        return
    report = search(question, progress=_say).to_dict()
    show_plan(report)
    write_json(report, json_file)


def _say(line: str) -> None:
    click.echo(line, err=True)
