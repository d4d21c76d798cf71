"""The command line: words in, one function of the package called, text out."""

from equitar.cli.app import main

__all__ = ["main"]
