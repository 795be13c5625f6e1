"""How a command tells a person that it failed."""

import sys


def fail(message: str) -> int:
    """Say why on standard error; returns the exit status of a failed command."""
    sys.stderr.write(f"ridealong: {message}\n")
    return 1
