"""What structured output costs a token: a batch decodes freely and held to a JSON Schema, in turns, on one engine.
Steps are timed one by one and their medians compared; processor time too, since another load on the machine changes the
one and not the other.

    python benchmarks/structured.py --batch 16 --tokens 96 --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import time

from headrace.core.config import Config
from headrace.core.request import Request, SamplingParams
from headrace.core.structured import StructuredOutputsParams
from headrace.launch import build_engine
from headrace.models.sources import locate_model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "pattern": "^[a-z.]+@[a-z]+\\.(org|com)$"},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "gone"]}},
    },
    "required": ["name", "age", "email", "tags"],
    "additionalProperties": False,
}
FORM = StructuredOutputsParams(json={"type": "array", "items": PERSON, "minItems": 1000})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=Config().model)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    built = build_engine(locate_model(Config(model=given.model, max_num_seqs=given.batch, max_model_len=1024)))
    began = time.perf_counter()
    built.grammars.compile(FORM).result()
    print(f"first form: {1e3 * (time.perf_counter() - began):.0f} ms, with the library and the vocabulary")

    def run(form: StructuredOutputsParams | None, number: int) -> tuple[list[float], float]:
        """(seconds of each decoding step, processor seconds of them all)."""
        params = SamplingParams(temperature=1.0, max_tokens=given.tokens, structured_outputs=form)
        for i in range(given.batch):
            prompt = [(7 * i + j) % 1000 + 100 for j in range(24)]
            built.engine.add(Request(f"{number}-{i}", prompt, params, given.tokens, seed=i), time.monotonic())
        built.engine.step(time.monotonic)
        steps, cpu = [], time.process_time()
        while built.engine.has_work:
            start = time.perf_counter()
            built.engine.step(time.monotonic)
            steps.append(time.perf_counter() - start)
        return steps, time.process_time() - cpu

    run(FORM, -1)
    times: dict[str, list[float]] = {"free": [], "held": []}
    cpus: dict[str, list[float]] = {"free": [], "held": []}
    for round_number in range(given.rounds):
        for name, form in (("free", None), ("held", FORM)):
            steps, cpu = run(form, 2 * round_number + (form is not None))
            times[name] += steps
            cpus[name].append(cpu / len(steps))
    wall = {name: 1e3 * statistics.median(values) for name, values in times.items()}
    work = {name: 1e3 * statistics.median(values) for name, values in cpus.items()}
    for name in wall:
        print(f"{name}: {wall[name]:.2f} ms a step, {work[name]:.2f} ms of processors")
    print(f"held costs {100 * (wall['held'] / wall['free'] - 1):+.1f} % of a step's time, ", end="")
    print(f"{100 * (work['held'] / work['free'] - 1):+.1f} % of its processor time")


if __name__ == "__main__":
    main()
