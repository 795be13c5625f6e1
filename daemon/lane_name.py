"""Which lane this is: a name that stays with its data directory, whichever process serves it.

Lanes that share a database tell by it who served a turn, and to whom an agent belongs.
"""

import secrets
from pathlib import Path

from daemon.learning.disk import make_folder, sync

_FILE = "lane"


def lane_name(data_dir: Path) -> str:
    """The name of the lane that has this data directory; made, to stay, when it has none."""
    make_folder(data_dir)
    path = data_dir / _FILE
    if not path.is_file():
        aside = path.with_suffix(".new")
        aside.write_text(f"lane-{secrets.token_hex(6)}")
        sync(aside)
        aside.replace(path)
        sync(data_dir)
    return path.read_text().strip()
