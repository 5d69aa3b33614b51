"""Worlds from seeds: which engine, and which operations in which order, all drawn from one number."""

from __future__ import annotations

import random
from collections import Counter

from tests.policy.machine import MAX_LEN, STEMS, Shape, World

from headrace.core.request import CacheHint
from headrace.core.structured import StructuredOutputsParams

FORM = StructuredOutputsParams(choice=["a"])


def drawn_request(draw: random.Random) -> dict:
    stem = draw.choice(STEMS)
    prompt = stem[: draw.randrange(26)] + [draw.randrange(4) for _ in range(draw.randrange(1, 4))]
    max_tokens = draw.choice([0, 1, 3, 8, 14, 14, 40, 40])
    max_tokens = min(max_tokens, MAX_LEN - len(prompt))
    min_tokens = draw.choice([0, 0, min(3, max_tokens)])
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "eos_ids": draw.choice([(), (0,)]),
        "stop_token_ids": draw.choice([(), (), (1,), tuple(range(2, 20))]),
        "cache_salt": draw.choice(["", "", "x"]),
        "min_tokens": min_tokens,
        "logprobs": draw.choice([None, None, 0]),
        "prompt_logprobs": draw.choice([None, None, None, 0]),
        "choice": draw.choice([0, 0, 1]),
        "priority": draw.choice([0, 0, 0, 1, -1]),
        "tenant": draw.choice(["", "a", "b"]),
        "deadline": draw.choice([None] * 12 + [0.05, 10.0]),
        "cache_hint": draw.choice([None] * 8 + [CacheHint(pin=0.2), CacheHint(ttl_s=0.05)]),
        "replayed": draw.choice([0, 0, 0, 2]),
        "fault": draw.choice([""] * 12 + ["nan", "crash"]),
        "structured_outputs": draw.choice([None, None, None, None if min_tokens else FORM]),
    }


def drawn_crowd(draw: random.Random) -> dict:
    """Mostly small requests of one class, so that a long one among them finds no room."""
    long = draw.random() < 0.1
    prompt = [draw.randrange(4) for _ in range(draw.randrange(24, 30) if long else draw.randrange(1, 6))]
    return {"prompt": prompt, "max_tokens": draw.randrange(4, 9)}


def act(world: World, draw: random.Random, *, crowd: bool = False) -> None:
    """One operation, drawn."""
    kind = draw.choices(
        ("add", "abort_live", "abort", "begin", "finish", "step", "flaky", "restart", "add_too_long"),
        (22, 4, 0.5, 12, 12, 50, 1, 0.4, 0.3),
    )[0]
    if kind == "add" or (crowd and len(world.live) < 10):
        asked = drawn_crowd(draw) if crowd else drawn_request(draw)
        if asked.get("fault") == "crash" and any(
            one.request.seed in world.device.faults.crash for one in world.live.values()
        ):
            asked["fault"] = ""
        world.add(**asked)
    elif kind in ("abort_live", "abort"):
        getattr(world, kind)(draw.randrange(1000))
    else:
        getattr(world, kind)()


def run_world(
    seed: int, operations: int, seen: Counter, shape: Shape | None = None, *, crowd: bool | None = None
) -> int:
    """A world from a seed: its shape, its operations, its end. Returns how many operations there were."""
    draw = random.Random(seed)
    world = World(shape or Shape.drawn(draw), seen)
    crowd = draw.random() < 0.2 if crowd is None else crowd
    try:
        while world.operations < operations:
            act(world, draw, crowd=crowd)
        world.drain()
    except Exception as error:
        error.add_note(f"world {seed}, operation {world.operations}, {world.shape}")
        raise
    return world.operations
