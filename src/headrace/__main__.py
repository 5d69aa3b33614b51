"""The headrace command, also as python -m headrace. `headrace serve` starts its engine's process first of all, so that
it loads beside the command line's own modules.
"""

import importlib
import sys
from typing import NoReturn

from headrace import engine_ahead


def main() -> NoReturn:
    if sys.argv[1:2] == ["serve"] and not {"-h", "--help"} & set(sys.argv):
        engine_ahead.start_ahead()
    try:
        status = importlib.import_module("headrace.cli").run()
    finally:
        engine_ahead.drop()
    sys.exit(status)


if __name__ == "__main__":
    main()
