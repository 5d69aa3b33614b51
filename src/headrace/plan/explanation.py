"""A Plan made of the candidate that was chosen and those it was weighed against: every figure that is printed, and the
sentences that say where it comes from.
"""

from collections.abc import Sequence

from headrace.plan.answer import Figures, Plan
from headrace.plan.candidate import Candidate, Pool, price_of
from headrace.plan.choice import Evidence
from headrace.plan.needs import host_needs, network_needs
from headrace.plan.question import Question
from headrace.plan.rehearsal import Joined, Seen
from headrace.plan.speculation import what_it_brings
from headrace.plan.steady import Point
from headrace.plan.usage import binding, floors, usage
from headrace.plan.ways import QUALITY, WHY_TP_IN_A_NODE, may_be_chosen
from headrace.policy.fitted_kernels import kernels_of, measured
from headrace.workload.summary import shared_prefix_share

_MEASURED, _GUESSED = 0.12, 0.35
"""Shares by which the number of GPUs may be off: the 90th percentile of the errors of time per token where kernels were
measured (docs/planning.md), and a guess where another GPU's shares of its limits stand in."""

_SHOWN = 12


def explained(
    question: Question, candidates: Sequence[Candidate], chosen: Candidate, evidence: Evidence | None
) -> Plan:
    """evidence: of the simulation; None where nothing was simulated."""
    points = chosen.at_load(question)
    ttft, tpot = chosen.times(points)
    floor_tpot = tpot[0]
    if evidence is not None and evidence.loaded:
        ttft, tpot = chosen.times(evidence.loaded)
        if evidence.pair is not None:
            ttft, tpot = evidence.pair.ttft, evidence.pair.tpot
    largest = max(chosen.pools, key=lambda pool: pool.devices * pool.capacity)
    off = (_backed(largest)[0] ** 2 + (evidence.cut if evidence else 0.0) ** 2) ** 0.5
    gpu, load = chosen.gpu, question.load
    serving = chosen.pools[-1].replica.way.serving
    low = {"p50": ttft[0] * 1e3, _percentile(question): ttft[1] * 1e3}
    return Plan(
        gpu=gpu.name,
        gpus=chosen.gpus,
        nodes=chosen.nodes,
        replicas=sum(chosen.replicas),
        cost_per_hour=chosen.cost_per_hour,
        cost_per_million=per_million(chosen, question),
        ttft=low,
        tpot={"p50": tpot[0] * 1e3, _percentile(question): tpot[1] * 1e3},
        gpu_bytes=chosen.pools[-1].replica.memory.parts(),
        concurrency=chosen.pools[-1].replica.memory.held,
        limit=binding(chosen),
        interval=(max(int(chosen.gpus * (1 - off)), 1), -(-int(chosen.gpus * (1 + off) * 1000) // 1000)),
        details={
            "interval_because": _backed(largest)[1],
            "requests_per_s": chosen.rate,
            "output_tokens_per_s": chosen.rate * load.output_len,
            "pools": [
                _described(pool, count, point)
                for pool, count, point in zip(chosen.pools, chosen.replicas, points, strict=True)
            ],
            "price_per_gpu_hour_usd": price_of(gpu),
            "priced": gpu.priced,
            "floors_gpus": floors(question.model, serving, load, chosen.rate, floor_tpot),
            "network": network_needs(chosen, question),
            "host": host_needs(chosen, question),
            **({} if evidence is None else _guessing(question, chosen, points[-1])),
            "simulation": None if evidence is None else _simulation(evidence, question),
            "notes": _notes(question, candidates, chosen),
        },
        candidates=tuple(_line(one, question) for one in candidates[:_SHOWN]),
    )


def _guessing(question: Question, chosen: Candidate, point: Point) -> Figures:
    if not question.limits.drafted or not any(question.limits.drafts):
        return {}
    return {"speculation": what_it_brings(question, chosen.pools[-1].replica.way, point.running)}


def per_million(candidate: Candidate, question: Question) -> float:
    """US dollars for a million output tokens."""
    return candidate.cost_per_hour / (candidate.rate * question.load.output_len * 3600) * 1e6


def _percentile(question: Question) -> str:
    return f"p{question.slo.percentile:g}"


def _described(pool: Pool, count: int, point: Point) -> Figures:
    way, memory = pool.replica.way, pool.replica.memory
    serving = way.serving
    return {
        "does": {"both": "prefill and decode"}.get(way.does, way.does),
        "replicas": count,
        "tensor_parallel_size": serving.ranks,
        "pipeline_parallel_size": serving.stages,
        "weights": str(serving.weights),
        "kv_cache_dtype": serving.cache,
        "max_num_batched_tokens": way.chunk,
        "max_num_seqs": int(min(memory.most_running, pool.most.peak * 1.25)) if pool.most.peak else memory.held,
        "num_speculative_tokens": way.drafts,
        "requests_per_s": point.rate,
        "requests_per_s_at_most": pool.capacity,
        "decoding_at_once": point.running,
        "step_ms": point.step * 1e3,
        "itl_ms": point.itl * 1e3,
        "per_gpu_bytes": memory.parts(),
        "kv_bytes_per_request": memory.request,
        "max_concurrency": memory.held,
        "used": usage(pool, point),
    }


def _line(candidate: Candidate, question: Question) -> Figures:
    """A candidate in a line of the table."""
    ttft, tpot = candidate.times([pool.most for pool in candidate.pools])
    way = candidate.pools[-1].replica.way
    return {
        "gpu": candidate.gpu.name,
        "pools": "split" if candidate.split else "unified",
        "parallel": [f"tp{p.replica.way.serving.ranks} pp{p.replica.way.serving.stages}" for p in candidate.pools],
        "weights": str(way.serving.weights),
        "kv_cache_dtype": way.serving.cache,
        "max_num_batched_tokens": way.chunk,
        "num_speculative_tokens": way.drafts,
        "gpus": candidate.gpus,
        "nodes": candidate.nodes,
        "cost_per_hour_usd": candidate.cost_per_hour,
        "cost_per_million_output_tokens_usd": per_million(candidate, question),
        "ttft_ms": ttft[1] * 1e3,
        "tpot_ms": tpot[1] * 1e3,
        "binding_limit": binding(candidate),
        "quality": QUALITY.get(str(way.serving.weights), "not known"),
        "may_be_chosen": may_be_chosen(way, question.limits),
        "simulated": all(pool.rehearsed for pool in candidate.pools),
    }


def _backed(pool: Pool) -> tuple[float, str]:
    """By how much the latency model may be off for a pool, and why."""
    serving = pool.replica.way.serving
    gpu, weights = serving.hardware.name, str(serving.weights)
    if not measured(gpu):
        return _GUESSED, f"wide: no kernel of {gpu} was measured; the H100's shares of the limits stand in"
    if weights not in dict(kernels_of(gpu).gemm) or serving.cache == "int8":
        return (
            _GUESSED,
            f"wide: kernels of {gpu} were measured, but not with {weights} weights or {serving.cache} cache",
        )
    return _MEASURED, f"kernels of {gpu} were measured; times per token of 143 served runs were met to this at the p90"


def _notes(question: Question, candidates: Sequence[Candidate], chosen: Candidate) -> list[str]:
    gpu, notes = chosen.gpu, []
    way = chosen.pools[-1].replica.way
    notes.append(WHY_TP_IN_A_NODE.format(link=gpu.link / 1e9, nic=gpu.nic / 1e9))
    notes.append(f"{way.serving.weights} weights cost {QUALITY.get(str(way.serving.weights), 'what is not known')}")
    if question.load.demands:
        share = shared_prefix_share(question.load.demands)
        notes.append(
            f"sized for the trace's busiest tenth; a cache without end would serve {share:.0%} of its prompts' tokens, "
            "of which none are counted on"
        )
    notes += _cheaper(candidates, chosen)
    notes.append(f"prices are of {gpu.priced}; replace them with --price {gpu.name}=USD")
    return notes


def _cheaper(candidates: Sequence[Candidate], chosen: Candidate) -> list[str]:
    """What would cost less but was not asked for: drafts that may not hold, and dtypes that cost quality."""
    notes = []
    for drafted in (True, False):
        others = [one for one in candidates if bool(one.pools[-1].replica.way.drafts) == drafted]
        best = min(others, key=lambda one: one.cost_per_hour, default=chosen)
        if best.cost_per_hour < chosen.cost_per_hour:
            way, saved = best.pools[-1].replica.way, 1 - best.cost_per_hour / chosen.cost_per_hour
            weights, cache = str(way.serving.weights), way.serving.cache
            held = f" with {way.drafts} draft tokens a step, if {way.accepted:.0%} of them hold" if drafted else ""
            asked = f"--precision {weights} --kv-cache-dtype {cache}"
            notes.append(
                f"{weights} weights and {cache} cache{held} would cost {saved:.0%} less ({best.gpus:,} {best.gpu.name})"
                f"; quality: {QUALITY.get(weights, 'not known')}; ask for it with {asked}"
                + (f" --acceptance {way.accepted:g}" if drafted else "")
            )
    return notes


def _simulation(evidence: Evidence, question: Question) -> Figures:
    """What was simulated, and how the fleet was cut for it."""
    return {
        "candidates_tried": evidence.tried,
        "candidates_dropped": evidence.dropped,
        "at_capacity": [_seen(one, question) for one in evidence.capacity],
        "at_the_load": [_seen(one, question) for one in evidence.loaded],
        "at_the_load_in_smaller_cells": [_seen(one, question) for one in evidence.smaller],
        **({} if evidence.pair is None else {"pools_together": _joined(evidence.pair, question)}),
        "error_of_the_cut": evidence.cut,
        "cut": "cells of a few replicas behind a router of their own, each with its share of the requests: replicas "
        "share nothing but what comes; what a router gains from more of them is what the two sizes differ by",
    }


def _joined(pair: Joined, question: Question) -> Figures:
    return {
        **_seen(pair, question),
        "keeps_times": pair.keeps(question.slo),
        "transfer_waited_ms": {"p50": pair.waited[0] * 1e3, "p99": pair.waited[1] * 1e3},
        "busiest_link": pair.link,
        "busiest_link_utilization": pair.utilization,
    }


def _seen(seen: Seen, question: Question) -> Figures:
    late = _percentile(question)
    return {
        "replicas": seen.replicas,
        "requests": seen.requests,
        "requests_per_s_of_each": seen.rate,
        "ttft_ms": {"p50": seen.ttft[0] * 1e3, late: seen.ttft[1] * 1e3},
        "tpot_ms": {"p50": seen.tpot[0] * 1e3, late: seen.tpot[1] * 1e3},
        "cached_share": seen.cached,
    }
