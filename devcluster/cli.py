"""The command line of the development cluster.

Other packages are imported where they are needed, so that `build` runs on a bare Python.
"""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from devcluster.build import DEFAULT, TOOLS, build, print_line, print_note


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

    command = commands.add_parser(
        "env", help="print the clients' environment as shell `export` lines"
    )
    command.add_argument("--directory", type=Path, required=True)
    command.set_defaults(run=_env)

    command = commands.add_parser("node", help="run a process node (started by ProcessNode)")
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


def _env(options: argparse.Namespace) -> int:
    from devcluster.cluster import DevCluster

    cluster = DevCluster(options.directory)
    if not cluster.has_started:
        print_note(f"{cluster.directory}: no cluster was started there")
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
