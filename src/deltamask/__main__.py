"""``python -m deltamask``."""

from deltamask.cli import main

main()
