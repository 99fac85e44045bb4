"""The command line of `stepwell explore`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..explain.arguments import add_directives, add_target, directives


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments (those of the process if None); `options` are those of torch.compile that they ask for."""
    parser = argparse.ArgumentParser(prog="stepwell explore", description="Every level of a model, linked, with reasons, times and memory.")
    parser.add_argument("target", help="file.py:function, a .mlir file at the level nd, loop or mem, or a .json file written before")
    parser.add_argument("--args", help="arguments of the function, as a Python expression that may use torch and the names of the file")
    parser.add_argument("--json", metavar="FILE", help="write the data (docs/reference/explorer-json.md)")
    parser.add_argument("--html", metavar="FILE", help="write one page that opens without a server")
    parser.add_argument("--serve", action="store_true", help="serve the page, which then also reruns and runs what is edited")
    parser.add_argument("--port", type=int, default=0, help="port of --serve (default: a free one)")
    parser.add_argument("--about", metavar="NAME", action="append", default=[], help="print what became of a value or of file.py:12")
    parser.add_argument("--against", metavar="FILE", help="print what differs from a .json file written before")
    parser.add_argument("--disable-pass", metavar="PASS", action="append", default=[], help="leave a pass out")
    parser.add_argument("--measure", action="store_true", help="run each kernel by itself too")
    add_target(parser)
    add_directives(parser)
    given = parser.parse_args(arguments)
    given.options = {**directives(given), "disable_passes": given.disable_pass}
    if not (given.json or given.html or given.about or given.against or given.serve):
        if given.target.endswith(".json"):
            parser.error("say what to do with the document: --html FILE, --about NAME or --against FILE")
        given.serve = True
    if given.target.endswith(".json") and (given.measure or given.gpu or any(given.options.values())):
        parser.error("what is overruled or measured is compiled again: give the program, not a .json file")
    if given.measure and given.gpu:
        parser.error("--target compiles for a GPU that need not be there: nothing can be measured with --measure")
    if given.serve and given.target.endswith(".json"):
        parser.error("--serve compiles again: give the program, not a .json file")
    return given
