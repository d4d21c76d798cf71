"""The command line: words in, one function of the package called, text out."""

import sys

_INTERRUPTED = 130  # exit code, as in shells: 128 + SIGINT


def main() -> None:
    """Run the command line. It is imported here, so that Ctrl-C in the meantime ends in one line too."""
    try:
        from equitar.cli.app import main as command
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. Nothing was begun.\n")
        sys.exit(_INTERRUPTED)
    command()
