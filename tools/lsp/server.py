"""The language server: what an editor asks, answered from the analysis of its text."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer

from ... import __version__
from ..opt.run_lines import run_lines
from . import navigation
from .actions import Runner, fixes, lowerings
from .analysis import Analysis, Message, analyse
from .completion import complete
from .errors import LanguageServerError
from .hover import hover
from .recorder import Place

DEBOUNCE_SECONDS = 0.2
"""How long the text has to be left alone before it is checked."""
SHOWN_LINES = 12
"""Lines of a message that an editor shows above its text."""
LOWER, RUN = "stepwell.lower", "stepwell.run"
COMMANDS = (LOWER, RUN)
"""What the editor can ask for by workspace/executeCommand: `lower(uri, target, level)` and `run(uri, line)`, lines from 1."""

_SEVERITIES = {"error": lsp.DiagnosticSeverity.Error, "information": lsp.DiagnosticSeverity.Information}
_KINDS = {
    "operation": lsp.CompletionItemKind.Function, "dialect": lsp.CompletionItemKind.Module, "value": lsp.CompletionItemKind.Variable,
    "symbol": lsp.CompletionItemKind.Reference, "type": lsp.CompletionItemKind.Class, "property": lsp.CompletionItemKind.Property,
    "pass": lsp.CompletionItemKind.Method, "option": lsp.CompletionItemKind.Property, "flag": lsp.CompletionItemKind.Keyword,
}  # fmt: skip


class Server(LanguageServer):
    """Serves any number of files; each is analysed in a thread, once for each text of it."""

    def __init__(self) -> None:
        super().__init__("stepwell", __version__)
        self.runner = Runner()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._found: dict[str, tuple[str, Analysis]] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._one = asyncio.Lock()
        for name, (function, options) in FEATURES.items():
            self.feature(name, options)(function)
        self.command(LOWER)(_lower)
        self.command(RUN)(_run)

    def serve(self) -> None:
        """Serve by standard input and output until the editor ends it."""
        try:
            self.start_io()
        finally:
            self.close()

    def close(self) -> None:
        """End what still runs, and remove the files that were shown."""
        self.runner.close()
        if self._folder is not None:
            self._folder.cleanup()

    async def analysis(self, uri: str) -> Analysis:
        """That of the text as it is now."""
        async with self._one:
            text = self.workspace.get_text_document(uri).source  # of several that wait, the later ones find what the first one made
            known = self._found.get(uri)
            if known is None or known[0] != text:
                known = self._found[uri] = text, await asyncio.to_thread(analyse, text, path_of(uri))
        return known[1]

    def check(self, uri: str, seconds: float) -> None:
        """Tell what is wrong with a text in some seconds, unless it has changed again by then."""
        if (waiting := self._waiting.pop(uri, None)) is not None:
            waiting.cancel()
        self._waiting[uri] = asyncio.create_task(self._check(uri, seconds))

    async def _check(self, uri: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        version = self.workspace.get_text_document(uri).version
        found = await self.analysis(uri)
        said = [self.diagnostic(found, message) for message in found.messages]
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, said, version))

    def diagnostic(self, found: Analysis, message: Message) -> lsp.Diagnostic:
        """A message as the editor shows it."""
        return lsp.Diagnostic(self.range(found, message.place), message.text, _SEVERITIES[message.severity], source="stepwell")

    def forget(self, uri: str) -> None:
        """Leave a closed file; its messages are taken back."""
        if (waiting := self._waiting.pop(uri, None)) is not None:
            waiting.cancel()
        self._found.pop(uri, None)
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    def offset(self, found: Analysis, position: lsp.Position) -> int:
        """The place in the text of the editor's position, whose columns are code units."""
        line = found.line(found.offset(position.line, 0))
        exact = self.workspace.position_codec.position_from_client_units([line], lsp.Position(0, position.character))
        return found.offset(position.line, exact.character)

    def position(self, found: Analysis, offset: int) -> lsp.Position:
        """The editor's position of a place in the text."""
        line, column = found.line_and_column(offset)
        return lsp.Position(line, self.workspace.position_codec.client_num_units(found.line(offset)[:column]))

    def range(self, found: Analysis, place: Place) -> lsp.Range:
        """The editor's range of a place in the text."""
        return lsp.Range(self.position(found, place.start), self.position(found, place.end))

    async def show(self, name: str, text: str) -> dict[str, str]:
        """Write a text to a file of the server's and open it in the editor, or say where it lies."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="stepwell-lsp-")
        file = Path(self._folder.name, name)
        file.write_text(text, encoding="utf-8")
        window = self.client_capabilities.window
        if window is not None and window.show_document is not None and window.show_document.support:
            await self.window_show_document_async(lsp.ShowDocumentParams(file.as_uri(), take_focus=True))
        else:
            self.say(f"written to {file}", lsp.MessageType.Info)
        return {"uri": file.as_uri(), "text": text}

    @asynccontextmanager
    async def progress(self, title: str) -> AsyncIterator[None]:
        """Let the editor show that something runs, where it can."""
        window = self.client_capabilities.window
        if window is None or not window.work_done_progress:
            yield
            return
        token = str(uuid4())
        await self.work_done_progress.create_async(token)
        self.work_done_progress.begin(token, lsp.WorkDoneProgressBegin(title))
        try:
            yield
        finally:
            self.work_done_progress.end(token, lsp.WorkDoneProgressEnd())

    def say(self, text: str, kind: lsp.MessageType) -> None:
        """Show the beginning of a message in the editor; all of it stands in its log."""
        self.window_log_message(lsp.LogMessageParams(kind, text))
        lines = text.rstrip().split("\n")
        self.window_show_message(lsp.ShowMessageParams(kind, "\n".join([*lines[:SHOWN_LINES], *["..."][: len(lines) > SHOWN_LINES]])))


def path_of(uri: str) -> str:
    """The path of a file's URI; of another one its last part."""
    parts = urlsplit(uri)
    return unquote(parts.path) or uri


def _opened(server: Server, params: lsp.DidOpenTextDocumentParams) -> None:
    server.check(params.text_document.uri, 0.0)


def _changed(server: Server, params: lsp.DidChangeTextDocumentParams) -> None:
    server.check(params.text_document.uri, DEBOUNCE_SECONDS)


def _closed(server: Server, params: lsp.DidCloseTextDocumentParams) -> None:
    server.forget(params.text_document.uri)


async def _hover(server: Server, params: lsp.HoverParams) -> lsp.Hover | None:
    found = await server.analysis(params.text_document.uri)
    said = hover(found, server.offset(found, params.position))
    if said is None:
        return None
    return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, said[0]), server.range(found, said[1]))


async def _definition(server: Server, params: lsp.DefinitionParams) -> lsp.Location | None:
    uri = params.text_document.uri
    found = await server.analysis(uri)
    place = navigation.definition(found, server.offset(found, params.position))
    return lsp.Location(uri, server.range(found, place)) if place is not None else None


async def _references(server: Server, params: lsp.ReferenceParams) -> list[lsp.Location]:
    uri = params.text_document.uri
    found = await server.analysis(uri)
    first, *rest = navigation.occurrences(found, server.offset(found, params.position)) or [None]
    places = [first, *rest] if params.context.include_declaration else rest
    return [lsp.Location(uri, server.range(found, place)) for place in places if place is not None]


async def _highlight(server: Server, params: lsp.DocumentHighlightParams) -> list[lsp.DocumentHighlight]:
    found = await server.analysis(params.text_document.uri)
    first, *rest = navigation.occurrences(found, server.offset(found, params.position)) or [None]
    kinds = lsp.DocumentHighlightKind
    written = [lsp.DocumentHighlight(server.range(found, first), kinds.Write)] if first is not None else []
    return written + [lsp.DocumentHighlight(server.range(found, place), kinds.Read) for place in rest if place is not None]


async def _completion(server: Server, params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
    found = await server.analysis(params.text_document.uri)
    offset = server.offset(found, params.position)
    return [
        lsp.CompletionItem(
            label=one.label, kind=_KINDS[one.kind], detail=one.detail or None,
            text_edit=lsp.TextEdit(server.range(found, Place(one.start, offset)), one.label),
        )
        for one in complete(found, offset)
    ]  # fmt: skip


async def _outline(server: Server, params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
    found = await server.analysis(params.text_document.uri)

    def symbol(item: navigation.Item) -> lsp.DocumentSymbol:
        kind = lsp.SymbolKind.Function if item.is_function else lsp.SymbolKind.Object
        places = server.range(found, item.whole), server.range(found, item.named)
        return lsp.DocumentSymbol(item.name, kind, *places, detail=item.detail, children=[symbol(one) for one in item.inner])

    return [symbol(item) for item in navigation.outline(found)]


async def _actions(server: Server, params: lsp.CodeActionParams) -> list[lsp.Command | lsp.CodeAction]:
    """Names put right, lowering, and each RUN line."""
    uri = params.text_document.uri
    found = await server.analysis(uri)
    place = Place(server.offset(found, params.range.start), server.offset(found, params.range.end))
    right: list[lsp.Command | lsp.CodeAction] = [
        lsp.CodeAction(
            f"Change to '{fix.name}'", kind=lsp.CodeActionKind.QuickFix, diagnostics=[server.diagnostic(found, fix.message)],
            edit=lsp.WorkspaceEdit(changes={uri: [lsp.TextEdit(server.range(found, fix.message.place), fix.name)]}),
        )
        for fix in fixes(found, place)
    ]  # fmt: skip
    lower = [lsp.Command(way.title, LOWER, arguments=[uri, way.target, way.level]) for way in lowerings(found)]
    return [*right, *lower, *(lsp.Command(f"Run: {text}", RUN, arguments=[uri, line]) for line, text in run_lines(found.text))]


async def _lower(server: Server, uri: str, target: str, level: str) -> dict[str, str] | None:
    text, path = server.workspace.get_text_document(uri).source, path_of(uri)
    return await _shown(server, f"{Path(path).stem}.{level}.mlir", server.runner.lower, text, path, target, level)


async def _run(server: Server, uri: str, line: int) -> dict[str, str] | None:
    text, path = server.workspace.get_text_document(uri).source, path_of(uri)
    return await _shown(server, f"{Path(path).stem}.out.mlir", server.runner.run_line, text, path, line)


async def _shown(server: Server, name: str, make: Callable[..., str], *arguments: Any) -> dict[str, str] | None:
    """Show what a function gives; None, and a message, where it fails or gives nothing."""
    try:
        async with server.progress(f"stepwell: {name}"):
            text = await asyncio.to_thread(make, *arguments)
    except LanguageServerError as error:
        server.say(str(error), lsp.MessageType.Error)
        return None
    if text.strip():
        return await server.show(name, text)
    server.say("The RUN line passes.", lsp.MessageType.Info)
    return None


FEATURES: dict[str, tuple[Callable[..., Any], Any]] = {
    lsp.TEXT_DOCUMENT_DID_OPEN: (_opened, None),
    lsp.TEXT_DOCUMENT_DID_CHANGE: (_changed, None),
    lsp.TEXT_DOCUMENT_DID_CLOSE: (_closed, None),
    lsp.TEXT_DOCUMENT_HOVER: (_hover, None),
    lsp.TEXT_DOCUMENT_DEFINITION: (_definition, None),
    lsp.TEXT_DOCUMENT_REFERENCES: (_references, None),
    lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT: (_highlight, None),
    lsp.TEXT_DOCUMENT_COMPLETION: (_completion, lsp.CompletionOptions(trigger_characters=[*".%@!#{,-"])),
    lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL: (_outline, None),
    lsp.TEXT_DOCUMENT_CODE_ACTION: (_actions, None),
}
"""Request or notification -> the function that answers it, and what the editor is told of it."""
