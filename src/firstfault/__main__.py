"""``python -m firstfault``."""

from firstfault.cli import main

main()
