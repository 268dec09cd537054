"""The command line of the development cluster.

Other packages are imported where they are needed, so that `build` runs on a bare Python.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from devcluster.build import DEFAULT, TOOLS, build, print_line, print_note

if TYPE_CHECKING:
    from devcluster.cluster import DevCluster

DEFAULT_FOLDER = Path(".devcluster")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m devcluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("build", help="build the programs, once per machine")
    command.add_argument("tools", nargs="*", type=_tool, metavar="TOOL")
    command.set_defaults(run=_build)

    for name, run, text in (
        ("up", _up, "start control plane, S3 server and a process node, or resume them"),
        ("down", _down, "stop everything; the state is kept in the folder"),
        ("status", _status, "show what is running"),
        ("env", _env, "print the clients' environment as shell `export` lines"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--directory", type=Path, default=DEFAULT_FOLDER)
        command.set_defaults(run=run)

    command = commands.add_parser("node", help="run a process node (started by `up`)")
    command.add_argument("directory", type=Path)
    command.set_defaults(run=_node)

    command = commands.add_parser("reap", help="wait for a process to end, then stop everything")
    command.add_argument("--owner", type=int, required=True)
    command.add_argument("--remove", action="store_true", help="delete the folder as well")
    command.add_argument("directory", type=Path)
    command.set_defaults(run=_reap)
    return parser


def _tool(name: str) -> str:
    if name not in TOOLS:
        raise argparse.ArgumentTypeError(f"no tool {name}: choose from {', '.join(TOOLS)}")
    return name


def _build(options: argparse.Namespace) -> int:
    for path in build(options.tools or DEFAULT).values():
        print_line(str(path))
    return 0


def _cluster(options: argparse.Namespace) -> DevCluster:
    from devcluster.cluster import DevCluster

    return DevCluster(options.directory)


def _up(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    cluster.start()
    cluster.node().start()
    return _status(options)


def _down(options: argparse.Namespace) -> int:
    _cluster(options).stop()
    print_line("stopped")
    return 0


def _status(options: argparse.Namespace) -> int:
    states = _cluster(options).status()
    for name, pid in states.items():
        print_line(f"{name:30} {'pid ' + str(pid) if pid else 'stopped'}")
    return 0 if states and all(states.values()) else 1


def _env(options: argparse.Namespace) -> int:
    cluster = _cluster(options)
    if not cluster.has_started:
        print_note(
            f"{cluster.directory}: no cluster was started there: run python -m devcluster up"
        )
        return 1
    for name, value in cluster.environment(print_note).items():
        print_line(f"export {name}={shlex.quote(value)}")
    return 0


def _node(options: argparse.Namespace) -> int:
    from devcluster.kubelet.agent import run_agent

    run_agent(options.directory)
    return 0


def _reap(options: argparse.Namespace) -> int:
    from devcluster.cluster import reap

    reap(options.owner, options.directory, remove=options.remove)
    return 0
