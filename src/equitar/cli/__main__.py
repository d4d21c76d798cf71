"""Run the command line as ``python -m equitar.cli``."""

from equitar.cli import main

main()
