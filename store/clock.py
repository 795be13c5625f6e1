"""The store's clock: microseconds since 1970 in UTC, the unit of every `*_us` time column.

Integers, because they are equal, ordered and hashed alike on SQLite and PostgreSQL.
"""

import time


def now_us() -> int:
    """The time of day, in microseconds since 1970-01-01T00:00:00Z."""
    return time.time_ns() // 1_000
