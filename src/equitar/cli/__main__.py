"""Run the command line as ``python -m equitar.cli``."""

from equitar.cli.app import main

main()
