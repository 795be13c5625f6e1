"""The house keeps its shape: who may import whom, what a file is like, and whose name `daemon` is."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import daemon

ROOT = Path(__file__).parents[1]
ROOMS = ("daemon", "engine", "signals", "store", "migrations")
ARROWS = {
    "daemon": {"engine", "signals", "store"},
    "store": {"signals"},
    "engine": set[str](),
    "signals": set[str](),
    "migrations": {"store"},
}
LIBRARIES = {
    "engine": {"torch", "transformers", "peft", "safetensors", "tokenizers"},
    "signals": {"pydantic"},
    "store": {"sqlalchemy", "alembic"},
    "migrations": {"sqlalchemy", "alembic"},
}
MOST_LINES = 330
"""Around 300: a file that outgrows it holds two ideas."""


def files(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """The modules a file imports, in full."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_its_arrows_point_to(room: str) -> None:
    reached = {name.split(".")[0] for path in files(room) for name in imports(path)} & set(ROOMS)
    assert reached - {room} <= ARROWS[room]


@pytest.mark.parametrize("room", LIBRARIES)
def test_a_room_knows_only_the_libraries_that_are_its_business(room: str) -> None:
    reached = {name.split(".")[0] for path in files(room) for name in imports(path)}
    foreign = reached - set(ROOMS) - set(sys.stdlib_module_names) - {"_typeshed"}
    assert foreign <= LIBRARIES[room]


def test_the_store_knows_the_signals_records_only_and_migrations_the_tables_only() -> None:
    signals = {name for path in files("store") for name in imports(path) if name.startswith("signals")}
    tables = {name for path in files("migrations") for name in imports(path) if name.startswith("store")}
    assert signals <= {"signals.records"}
    assert tables <= {"store.tables"}


def test_a_migration_imports_nothing_of_todays_code() -> None:
    versions = [path for path in files("migrations") if path.parent.name == "versions"]
    assert len(versions) > 1
    assert not {name.split(".")[0] for path in versions for name in imports(path)} & set(ROOMS)


@pytest.mark.parametrize("path", [path for room in ROOMS for path in files(room)], ids=lambda path: path.name)
def test_a_file_says_what_it_is_and_stays_small(path: Path) -> None:
    text = path.read_text()
    if path.parent.name == "versions" and path.name == "__init__.py":
        return
    assert ast.get_docstring(ast.parse(text)), f"{path} does not say what it is"
    assert len(text.splitlines()) <= MOST_LINES


def test_the_daemon_that_is_imported_is_ours() -> None:
    assert Path(daemon.__file__).is_relative_to(ROOT)


def test_the_command_lines_help_loads_no_torch() -> None:
    code = (
        "import sys, daemon.commands.cli\n"
        "try: daemon.commands.cli.main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'sqlalchemy'} & set(sys.modules), 'heavy'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "--repack" in done.stdout


def test_the_readmes_tree_has_a_line_for_every_file_and_no_other() -> None:
    tree, folders, listed = (ROOT / "README.md").read_text().partition("## What is where")[2], [""], set()
    for line in tree.partition("```")[2].partition("```")[0].splitlines()[1:]:
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        folders = [*folders[: depth + 1], name.rstrip("/")]
        if name.endswith(".py"):
            listed.add("/".join(folders[1:]))
    there = {
        str(path.relative_to(ROOT)) for room in ROOMS for path in files(room) if "migrations" not in path.parts
    }
    assert listed == {name for name in there if not name.endswith("__init__.py")}


def test_every_file_that_the_architecture_names_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`((?:daemon|engine|signals|store|tests)/[\w/.]+?)`", text))
    assert len(named) > 30
    assert not [name for name in named if not (ROOT / name).exists()]


def test_every_setting_that_the_readme_names_exists() -> None:
    named = set(re.findall(r"--([a-z][a-z-]+)", (ROOT / "README.md").read_text()))
    parser_text = subprocess.run(
        [sys.executable, "-m", "daemon.commands.cli", "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    others = {"help", "file", "show", "version", "directory", "config"}
    others |= {"archive", "before", "format", "output", "url"}  # ridealong ledger's
    others |= {"agent", "until", "signal", "context", "dry-run", "yes"}
    assert not [name for name in named - others if f"--{name}" not in parser_text]
