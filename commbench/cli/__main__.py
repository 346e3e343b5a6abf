"""``python -m commbench.cli``."""

from commbench.cli.main import main

main()
