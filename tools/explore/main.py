"""`stepwell.explore`: every level of a compilation with its links, reasons, times and memory.

stepwell.explore(fn, *args).write_json("out.json")
stepwell explore file.py:function --args "torch.randn(3, 4)" --json out.json
stepwell explore graph.mlir --html out.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import FileError, StepwellError
from .document import FORMAT, VERSION, document
from .errors import ExploreError
from .watch import Watcher

if TYPE_CHECKING:
    from ...passes.cost.machine import Machine
    from ..explain.main import Explanation


@dataclass
class Exploration:
    """What `explore` found: `data` is the document (docs/reference/explorer-json.md), everything else is made from it."""

    data: dict[str, Any]

    def json(self) -> str:
        """The document as text."""
        return json.dumps(self.data, separators=(",", ":"), allow_nan=False, default=str)

    def html(self, view: str = "levels") -> str:
        """The document as one page, which opens without a server or network, at a view: levels, passes, plan, time or report."""
        from .page.html import page

        return page(self.json(), self.data["name"], view=view)

    def write_json(self, path: str | Path) -> None:
        """Write the document. Raises FileError for a file that cannot be written."""
        _write(path, self.json())

    def write_html(self, path: str | Path, view: str = "levels") -> None:
        """Write the page, see `html`. Raises FileError for a file that cannot be written."""
        _write(path, self.html(view))

    def about(self, name: str) -> list[dict[str, Any]]:
        """What is known of a value (name of the FX node, or `file.py:12`), see answers.py."""
        from .answers import about

        return about(self.data, name)


def _write(path: str | Path, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write '{path}': {error.strerror}") from error


def explore(
    fn: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
    measure: bool = False,
    target: str | None = None,
    **kwargs: Any,
) -> Exploration:
    """Compile `fn` for these arguments as torch.compile(backend="stepwell", options=options) does, and keep every level, what each
    pass did, what was decided and why, and what that costs.

    `fn` (a function or module) is run once; where a result needs gradients, the backward graph is compiled too. `machine`: what times are
    predicted for; measure: each kernel also runs by itself; target: a GPU that graphs are compiled for, which need not be there. Raises
    what stepwell.explain raises, errors of ours as they are."""
    from torch._dynamo.exc import BackendCompilerFailed

    from ..explain.main import call_of, explain, measured_machine

    watcher = Watcher(machine or measured_machine(), measure, fixed=machine is not None)
    try:
        found = explain(fn, *args, options=options, quiet=True, target=target, collector=watcher, **kwargs)
    except BackendCompilerFailed as error:
        if isinstance(error.inner_exception, StepwellError):
            raise error.inner_exception from error
        raise
    return exploration(watcher, found, call_of(options, measure, target))


def explore_text(
    text: str,
    path: str,
    *,
    options: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
    measure: bool = False,
    target: str | None = None,
) -> Exploration:
    """The same for IR at the level nd, loop or mem, from there down; `path` names it. Raises StepwellError that names the place of a
    mistake."""
    from ..explain.main import call_of, explain_text, measured_machine

    watcher = Watcher(machine or measured_machine(), measure, fixed=machine is not None)
    found = explain_text(text, path, options=options, quiet=True, target=target, collector=watcher)
    return exploration(watcher, found, call_of(options, measure, target))


def explore_file(path: str, **settings: Any) -> Exploration:
    """The same for a file. Raises FileError for one that cannot be read."""
    from ..opt.main import read_input

    return explore_text(read_input(path), path, **settings)


def exploration(watcher: Watcher, found: Explanation, call: dict[str, Any]) -> Exploration:
    """What a watcher saw and explain found; `call` is what was asked for."""
    return Exploration(document(watcher, found, call))


def read(path: str | Path) -> Exploration:
    """A document that was written before. Raises FileError for a file that cannot be read, ExploreError for one that is none."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read '{path}': {error.strerror}") from error
    except ValueError as error:
        raise ExploreError(f"'{path}' is no JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ExploreError(f"'{path}' is no document of the explorer (its 'format' is not '{FORMAT}')")
    if data.get("version") != VERSION:
        raise ExploreError(f"'{path}' has version {data.get('version')} of the document, this stepwell reads {VERSION}")
    return Exploration(data)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    import sys

    from .arguments import parse

    given = parse(arguments)
    try:
        again = _compiler(given)
        found = again(given.options, given.measure)
        if given.json is not None:
            found.write_json(given.json)
        if given.html is not None:
            found.write_html(given.html)
        for name in given.about:
            _print_about(found, name)
        if given.against is not None:
            _print_difference(found, given.against)
        if given.serve:
            _serve(found, again, given.port)
        return 0
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _compiler(given: Any) -> Callable[[Mapping[str, Any], bool], Exploration]:
    """What compiles the program of the command line with options, as often as it is asked to."""
    call = {"target": given.target, **({"args": given.args} if given.args is not None else {})}
    if given.target.endswith(".json"):
        return lambda options, measure: read(given.target)
    if given.target.endswith(".mlir"):
        from ..opt.main import read_input

        text = read_input(given.target)
        return lambda options, measure: _called(explore_text(text, given.target, options=options, measure=measure, target=given.gpu), call)
    from ..explain.main import load_function

    fn, values = load_function(given.target, given.args)

    def again(options: Mapping[str, Any], measure: bool) -> Exploration:
        import torch

        torch._dynamo.reset()
        return _called(explore(fn, *values, options=options, measure=measure, target=given.gpu), call)

    return again


def _called(found: Exploration, call: dict[str, Any]) -> Exploration:
    """A document that says how the command line names its program."""
    found.data["call"].update(call)
    return found


def _serve(found: Exploration, again: Callable[[Mapping[str, Any], bool], Exploration], port: int) -> None:
    """Serve the page until the user interrupts."""
    from .server.http import Server
    from .server.session import Session

    with Server(Session(found, again), port) as server:
        print(f"{server.url}\nInterrupt (Ctrl-C) to end.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def _print_about(found: Exploration, name: str) -> None:
    from .answers import text_of

    for one in found.about(name):
        print(text_of(one))


def _print_difference(found: Exploration, path: str) -> None:
    from .compare import compare, text_of

    print(text_of(compare(read(path).data, found.data)))
