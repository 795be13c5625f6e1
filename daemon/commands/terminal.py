"""How a command tells a person what it does, and that it failed."""

import sys


def say(line: str) -> None:
    """Say a line on standard output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def note(line: str) -> None:
    """Say a line on standard error, beside what was asked for."""
    sys.stderr.write(f"ridealong: {line}\n")


def fail(message: str) -> int:
    """Say why on standard error; returns the exit status of a failed command."""
    note(message)
    return 1
