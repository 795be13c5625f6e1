"""How many bytes of this process are in memory now, read from the operating system."""

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """The resident set, in bytes."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
