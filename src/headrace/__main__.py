"""python -m headrace is the same as headrace."""

from headrace.cli import main

main()
