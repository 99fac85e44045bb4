"""The process that runs passes and programs for the server: a crash in them ends it, and not the server."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ..opt.run_lines import RunLineError, in_process, opt_tool, run_command
from ..worker_pool import serve


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """`text` of what opt-tool writes, or `error`. A request has the `text` and the `file` that it is of, and a `pipeline` to lower it with
    or the `command` of a RUN line."""
    if "command" in request:
        return _run(request["command"], request["text"], Path(request["file"]))
    outcome = in_process(opt_tool, ["-", "-p", request["pipeline"]], request["text"])
    if outcome.code:
        return {"error": outcome.err.replace("<stdin>", request["file"])}
    return {"text": outcome.out}


def _run(command: str, text: str, file: Path) -> dict[str, Any]:
    """Run on the text of the editor, which the file may not have yet."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, file.name)
        copy.write_text(text, encoding="utf-8")
        try:
            return {"text": run_command(command, {"s": str(copy), "S": str(file.parent), "t": f"{folder}/t", "%": "%"})}
        except RunLineError as error:
            return {"error": str(error).replace(str(copy), str(file))}
        except (OSError, ValueError) as error:  # a file of the command, or its quotes
            return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    serve(answer)
