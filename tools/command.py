"""The command `stepwell`: each subcommand hands over to the tool that does it, which is loaded then."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Command:
    """A subcommand: the function that gets the rest of the arguments and gives the exit code, as `module:name` of this folder."""

    entry: str
    summary: str


COMMANDS = {
    "explain": Command("explain.main:main", "what becomes of a function or an IR file, step by step, and why"),
    "explore": Command("explore.main:main", "every level side by side in a browser, linked, with reasons, times and memory"),
    "check": Command("check.main:main", "which operation of a compiled function is wrong, and the pass behind it"),
    "reduce": Command("reduce.main:main", "the smallest graph or IR file that still fails"),
    "fuzz": Command("fuzz.__main__:main", "random programs against eager and the interpreters"),
    "export": Command("package.main:main", "a model as one file that runs without a compiler"),
    "inspect": Command(
        "package.inspection.inspect:main", "what a package holds: signature, kernels, memory, bytes; what differs between two"
    ),
    "cache": Command("cache.cache:main", "what is kept on disk: show, trim, clear, export, import"),
    "bench": Command("bench.main:main", "time, bytes and memory against eager and Inductor"),
    "lsp": Command("lsp.main:main", "a language server for files of IR, which an editor starts"),
    "opt": Command("opt.main:main", "run passes on IR of any level, the same as opt-tool"),
}

_PACKAGES = ("torch", "xdsl", "llvmlite", "triton")
"""What a report of an error should name the versions of."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the subcommand that the arguments (those of the process if None) name; 2 where there is none of that name."""
    name, *rest = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        print(version())
        return 0
    if name not in COMMANDS:
        from ..passes.manager.errors import did_you_mean

        kind, known = ("option", ("--help", "--version")) if name.startswith("-") else ("command", tuple(COMMANDS))
        hint = did_you_mean(name, known) or f"; there are: {', '.join(known)}"
        print(f"stepwell: error: there is no {kind} '{name}'{hint}", file=sys.stderr)
        return 2
    module, _, function = COMMANDS[name].entry.partition(":")
    return getattr(import_module(f".{module}", __package__), function)(rest)


def usage() -> str:
    """The page of --help: a line for each subcommand."""
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:{width}}{command.summary}" for name, command in COMMANDS.items()]
    head = ["usage: stepwell COMMAND ...", "       stepwell --version", "", "commands (stepwell COMMAND --help says more):"]
    return "\n".join([*head, *lines])


def version() -> str:
    """The version of stepwell, and of what it runs on."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    from .. import __version__

    found = [f"Python {sys.version.split()[0]}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version_of(name)}")
        except PackageNotFoundError:
            continue
    return f"stepwell {__version__} ({', '.join(found)})"
