"""How many bytes this process takes and how many are to be had, as the operating system says."""

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")
_MEMINFO = Path("/proc/meminfo")


def resident_bytes() -> int:
    """The resident set, in bytes."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES


def available_bytes() -> int:
    """What can be allocated without pushing anything out of memory, in bytes."""
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
