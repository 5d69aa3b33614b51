"""How long `import headrace`, and `headrace --help`, take beyond an interpreter that does nothing: the median of
several processes, in ms.

    python benchmarks/import_time.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

CODE = {
    "import headrace": "import headrace",
    "headrace --help": "import sys; from headrace import cli; sys.stdout = open('/dev/null', 'w'); cli.run(['--help'])",
}


def median_ms(code: str, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    empty = median_ms("pass", rounds)
    print(f"{'python itself':<16} {empty:6.1f} ms")
    for name, code in CODE.items():
        print(f"{name:<16} {median_ms(code, rounds) - empty:6.1f} ms more")


if __name__ == "__main__":
    main()
