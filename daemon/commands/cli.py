"""The command line: `ridealong serve | signal | ledger | adapters | replay | forget | demo | bench`.

- Nothing heavy is imported until a command needs it: `--help` loads no torch.
- Commands that ask a running service find it by `--url`; what it refuses is printed and the exit status is 1.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from daemon import __version__
from daemon.commands.ledger_flags import KEY_VARIABLE, add_ledger
from daemon.commands.terminal import fail
from daemon.config import ConfigError, Settings, add_flags, read_settings

DEFAULT_URL = "http://127.0.0.1:8088"
AGAIN_SETTINGS = ("data_dir", "database", "model", "model_cache", "rank", "alpha", "lesson_mib")
"""What must be known to learn anything again."""
Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    try:
        run: Command = given.run
        return run(given)
    except ConfigError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ridealong", description="Serve a local language model, and let it learn from the traffic it serves."
    )
    parser.add_argument("--version", action="version", version=f"ridealong {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a model and learn from its traffic")
    add_flags(serve)
    serve.set_defaults(run=_serve)
    _add_signal(commands)
    add_ledger(commands).set_defaults(run=_ledger)
    _add_adapters(commands)
    _add_replay(commands)
    _add_forget(commands)
    demo = commands.add_parser("demo", help="play an agent against a service of its own and show what it learned")
    demo.set_defaults(run=_demo)
    _add_bench(commands)
    return parser


def _add_signal(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    signal = commands.add_parser("signal", help="send signals, ask what became of one, or why its tokens weigh")
    _add_url(signal)
    choice = signal.add_mutually_exclusive_group()
    choice.add_argument("--file", metavar="FILE", help="signals as JSON or NDJSON; - reads standard input")
    choice.add_argument("--show", metavar="ID", help="what became of a signal")
    signal.set_defaults(run=_signal)
    actions = signal.add_subparsers(dest="action", metavar="ACTION")
    explain = actions.add_parser("explain", help="a signal's lesson, and where each token's weight comes from")
    for flag in ("--url", "--api-key"):  # after the action as well as before it
        explain.add_argument(flag, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    explain.add_argument("id", metavar="ID")
    explain.add_argument("--json", action="store_true", help="JSON instead of a table")


def _add_adapters(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    adapters = commands.add_parser("adapters", help="list, promote, roll back or export agents' adapters")
    _add_url(adapters)
    actions = adapters.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("ls", help="every agent's shadow and versions")
    for action, text in (
        ("promote", "serve the agent's shadow from her next turn on"),
        ("rollback", "serve an earlier version again, and learn on from it"),
        ("export", "write a PEFT adapter directory under the data directory's exports"),
    ):
        one = actions.add_parser(action, help=text)
        one.add_argument("agent")
        if action != "promote":
            one.add_argument("--version", type=int, required=action == "rollback", help="0 is the base")
        if action == "export":
            one.add_argument("--directory", required=True, help="its name under exports")
    adapters.set_defaults(run=_adapters)


def _add_replay(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    replay = commands.add_parser("replay", help="take an agent's steps again and hold them against the ledger")
    replay.add_argument("--agent", required=True, help="whose")
    replay.add_argument("--until", type=_positive, metavar="STEP", help="the number of the last step; else all")
    add_flags(replay, AGAIN_SETTINGS)
    replay.set_defaults(run=_replay)


def _add_forget(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    forget = commands.add_parser(
        "forget", help="rebuild adapters as if something had never been, and erase its text; no service may run"
    )
    forget.add_argument("--signal", metavar="ID", help="a signal, and what was learned from it")
    forget.add_argument("--context", help="a context, its turns included")
    forget.add_argument("--agent", help="all of an agent's; with --context that of no other")
    forget.add_argument("--dry-run", action="store_true", help="say what there is to forget, and change nothing")
    forget.add_argument("--yes", "-y", action="store_true", help="do not ask first")
    add_flags(forget, AGAIN_SETTINGS)
    forget.set_defaults(run=_forget)


def _add_bench(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    bench = commands.add_parser("bench", help="measure, against the alternatives where there are any")
    bench.add_argument(
        "what",
        choices=["learn", "serve", "interference", "memory", "start", "ledger", "signals"],
        help="learn: a lesson against trl and plain PEFT; serve: decode and prefill against transformers; "
        "interference: what a turn notices of lessons; memory: a lesson after a long prefix against a short one; "
        "start: launch to serving; ledger: pages of a million rows; "
        "signals: signals taken over HTTP",
    )
    bench.add_argument("--rounds", type=_positive, help="alternations of the sides (default: 5; tiny: 2)")
    bench.add_argument("--check", action="store_true", help="exit with status 1 when a bar is not met")
    bench.add_argument("--model", metavar="DIR", help="a model's directory; else the bundled SmolLM2")
    bench.add_argument("--repack", choices=["off", "serve", "both", "auto"], help="else the engine's default")
    bench.add_argument("--tiny", action="store_true", help="sizes that run in seconds and measure nothing")
    bench.add_argument("--top", type=_positive, help="memory: list so many of a lesson's tensors (default: 10)")
    bench.set_defaults(run=_bench)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the service (default: {DEFAULT_URL})")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=os.environ.get(KEY_VARIABLE),
        help=f"else the environment's {KEY_VARIABLE}",
    )


def _serve(given: argparse.Namespace) -> int:
    settings = _settings(given)
    from daemon.http.errors import SnapshotDamaged  # noqa: PLC0415 - torch is loaded here, not for --help
    from daemon.http.keys import BadKeys  # noqa: PLC0415
    from daemon.running import ServiceFailed, serve  # noqa: PLC0415
    from engine.errors import EngineError  # noqa: PLC0415
    from store.errors import StoreError  # noqa: PLC0415

    try:
        serve(settings)
    except (ServiceFailed, SnapshotDamaged, BadKeys, EngineError, StoreError, OSError) as error:
        return fail(str(error))
    return 0


def _signal(given: argparse.Namespace) -> int:
    from daemon.commands.client import run_signal  # noqa: PLC0415

    return run_signal(given)


def _ledger(given: argparse.Namespace) -> int:
    from daemon.commands.ledger import run  # noqa: PLC0415

    return run(given, _settings(given))


def _adapters(given: argparse.Namespace) -> int:
    from daemon.commands.client import run_adapters  # noqa: PLC0415

    return run_adapters(given)


def _replay(given: argparse.Namespace) -> int:
    from daemon.commands.replay import run  # noqa: PLC0415

    return run(given, _settings(given))


def _forget(given: argparse.Namespace) -> int:
    from daemon.commands.forget import run  # noqa: PLC0415

    return run(given, _settings(given))


def _demo(_given: argparse.Namespace) -> int:
    from daemon.commands.demo import run  # noqa: PLC0415

    return run()


def _bench(given: argparse.Namespace) -> int:
    from daemon.bench.command import run  # noqa: PLC0415

    return run(given)


def _settings(given: argparse.Namespace) -> Settings:
    return read_settings(vars(given))


if __name__ == "__main__":
    sys.exit(main())
