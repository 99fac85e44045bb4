"""The language server, asked by a client as an editor does: over the standard input and output of `stepwell lsp`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("pygls", reason="pygls is not installed (the extra 'lsp')")

from lsprotocol import types as lsp  # noqa: E402
from pygls.lsp.client import LanguageClient  # noqa: E402

from stepwell.tools.lsp.server import COMMANDS, LOWER, RUN, Server, _shown, path_of  # noqa: E402

SECONDS = 60.0
NORM = (Path(__file__).resolve().parents[3] / "docs/examples/norm.mlir").read_text()
RUN_LINE = "// RUN: opt-tool %s -p nd-canonicalize | filecheck %s\n// CHECK: nd.sqrt\n"


class Editor:
    """A client with files open. What the server says by itself is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = asyncio.new_event_loop()
        self.client = LanguageClient("editor", "1")
        self.said: list[lsp.ShowMessageParams] = []
        self.shown: list[str] = []
        self.progress: list[str] = []
        self.messages: dict[str, lsp.PublishDiagnosticsParams] = {}
        self.told = asyncio.Event()
        self.version = 0

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def _(params):
            self.messages[params.uri] = params
            self.told.set()

        @self.client.feature(lsp.WINDOW_SHOW_MESSAGE)
        def _(params):
            self.said.append(params)

        @self.client.feature(lsp.WINDOW_SHOW_DOCUMENT)
        def _(params):
            self.shown.append(params.uri)
            return lsp.ShowDocumentResult(True)

        @self.client.feature(lsp.WINDOW_WORK_DONE_PROGRESS_CREATE)
        def _(params):
            return None

        @self.client.feature(lsp.PROGRESS)
        def _(params):
            self.progress.append(params.value["kind"] if isinstance(params.value, dict) else params.value.kind)

    def wait(self, work):
        return self.loop.run_until_complete(asyncio.wait_for(work, SECONDS))

    def start(self):
        self.wait(self.client.start_io(sys.executable, "-m", "stepwell", "lsp"))
        window = lsp.WindowClientCapabilities(show_document=lsp.ShowDocumentClientCapabilities(True), work_done_progress=True)
        able = lsp.ClientCapabilities(window=window)
        answer = self.wait(self.client.initialize_async(lsp.InitializeParams(able, root_uri=self.folder.as_uri())))
        self.client.initialized(lsp.InitializedParams())
        return answer

    def open(self, text: str, name: str = "norm.mlir") -> str:
        uri = (self.folder / name).as_uri()
        self.version += 1
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(uri, "mlir", self.version, text)))
        return uri

    def change(self, uri: str, text: str) -> None:
        self.version += 1
        document = lsp.VersionedTextDocumentIdentifier(self.version, uri)
        change = lsp.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [change]))

    def close(self, uri: str) -> None:
        self.client.text_document_did_close(lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(uri)))

    def diagnostics(self, uri: str) -> list[tuple[int, int, str]]:
        """Line and column, both from 0, and text of the messages about the text as it is now."""

        async def newest():
            while uri not in self.messages or self.messages[uri].version != self.version:
                self.told.clear()
                await self.told.wait()
            return self.messages[uri].diagnostics

        return [(d.range.start.line, d.range.start.character, d.message) for d in self.wait(newest())]

    def at(self, kind, uri: str, text: str, word: str, count: int = 0, **more):
        """The parameters of a request about the `count`-th place of a word."""
        offset = -1
        for _ in range(count + 1):
            offset = text.index(word, offset + 1)
        before = text[:offset]
        position = lsp.Position(before.count("\n"), offset - before.rfind("\n") - 1)
        return kind(text_document=lsp.TextDocumentIdentifier(uri), position=position, **more)

    def command(self, name: str, *arguments):
        return self.wait(self.client.workspace_execute_command_async(lsp.ExecuteCommandParams(name, list(arguments))))


@pytest.fixture(scope="module")
def editor(tmp_path_factory):
    found = Editor(tmp_path_factory.mktemp("files"))
    found.capabilities = found.start().capabilities
    yield found
    found.wait(found.client.shutdown_async(None))
    found.client.exit(None)
    found.wait(found.client.stop())
    found.loop.close()


@pytest.fixture
def norm(editor):
    uri = editor.open(NORM)
    yield uri
    editor.close(uri)


def test_it_says_what_it_can(editor):
    able = editor.capabilities
    assert able.hover_provider and able.definition_provider and able.references_provider and able.document_symbol_provider
    assert able.completion_provider and able.code_action_provider
    assert sorted(able.execute_command_provider.commands) == sorted(COMMANDS)


def test_messages_come_as_one_types_and_go_again(editor, norm):
    assert editor.diagnostics(norm) == []
    editor.change(norm, NORM.replace("nd.sqrt", "nd.sqrrt"))
    assert editor.diagnostics(norm) == [(8, 10, "dialect 'nd' has no operation 'nd.sqrrt'; did you mean 'nd.sqrt'?")]
    editor.change(norm, NORM.replace("dims = [1]", "dims = [7]"))
    ((line, column, message),) = editor.diagnostics(norm)
    assert (line, column) == (3, 9) and "dims" in message
    editor.change(norm, NORM)
    assert editor.diagnostics(norm) == []


@pytest.mark.parametrize("text", ["", "\0", '"', "func.func @f(", "{" * 3000, "// RUN: opt-tool '", "\r\n\r\n%x = nd.add \U0001f600"])
def test_broken_text_does_not_end_it(editor, norm, text):
    editor.change(norm, text)
    assert bool(editor.diagnostics(norm)) == (text not in ("", "// RUN: opt-tool '"))
    place = lsp.TextDocumentIdentifier(norm), lsp.Position(0, 1)
    editor.wait(editor.client.text_document_hover_async(lsp.HoverParams(*place)))
    editor.wait(editor.client.text_document_completion_async(lsp.CompletionParams(*place)))
    editor.wait(editor.client.text_document_code_action_async(
        lsp.CodeActionParams(place[0], lsp.Range(place[1], place[1]), lsp.CodeActionContext([]))
    ))  # fmt: skip


def test_hover(editor, norm):
    def about(word, count=0):
        return editor.wait(editor.client.text_document_hover_async(editor.at(lsp.HoverParams, norm, NORM, word, count))).contents.value

    assert "### nd.reshape\nSame elements in row-major order" in about("nd.reshape")
    assert "%sum : !nd.tensor<s0 x f32>" in about("%sum", 1) and "Result of `nd.reduce`, line 4; 1 use" in about("%sum")
    assert "Argument of `func.func`, line 2; 3 uses" in about("%x")
    assert "An immutable n-d tensor" in about("!nd.tensor")


def test_definition_and_uses(editor, norm):
    where = editor.wait(editor.client.text_document_definition_async(editor.at(lsp.DefinitionParams, norm, NORM, "%root", 1)))
    assert (where.range.start.line, where.range.start.character, where.uri) == (8, 2, norm)
    context = {"context": lsp.ReferenceContext(include_declaration=False)}
    found = editor.wait(editor.client.text_document_references_async(editor.at(lsp.ReferenceParams, norm, NORM, "%x", **context)))
    assert [(one.range.start.line, one.range.start.character) for one in found] == [(2, 19), (2, 23), (9, 14)]


def test_completion_after_two_units_of_one_character(editor, norm):
    text = NORM.replace("  func.return", '  // \U0001f600\n  %z = nd.constant {text = "\U0001f600"}, nd.red\n  %z = nd.red\n  func.return')
    editor.change(norm, text)
    params = editor.at(lsp.CompletionParams, norm, text, "nd.red\n", 1)
    params.position.character += 6
    (one,) = editor.wait(editor.client.text_document_completion_async(params))
    assert one.label == "nd.reduce" and one.text_edit.range.start.character == 7
    params = editor.at(lsp.HoverParams, norm, text, "nd.red\n")
    params.position.character += 1  # the character before it has two units in UTF-16
    assert editor.wait(editor.client.text_document_hover_async(params)) is None


def test_outline(editor, norm):
    (function,) = editor.wait(
        editor.client.text_document_document_symbol_async(lsp.DocumentSymbolParams(lsp.TextDocumentIdentifier(norm)))
    )
    assert (function.name, function.detail, function.kind) == ("@norm", "func.func", lsp.SymbolKind.Function)
    assert (function.range.start.line, function.range.end.line) == (1, 11)


def test_actions_lower_and_run(editor):
    uri = editor.open(RUN_LINE + NORM, "run.mlir")
    here = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))
    actions = editor.wait(editor.client.text_document_code_action_async(
        lsp.CodeActionParams(lsp.TextDocumentIdentifier(uri), here, lsp.CodeActionContext([]))
    ))  # fmt: skip
    commands = {one.title: one for one in actions}
    assert {one.command for one in commands.values()} == {LOWER, RUN}
    next_level = commands["Run to the next level: loop (cpu)"]
    found = editor.command(next_level.command, *next_level.arguments)
    assert "loop.nest" in found["text"] and editor.shown[-1] == found["uri"] and found["uri"].endswith("run.loop.mlir")
    assert editor.progress == ["begin", "end"]
    run = commands["Run: opt-tool %s -p nd-canonicalize | filecheck %s"]
    assert editor.command(run.command, *run.arguments) is None
    assert editor.said[-1].message == "The RUN line passes." and editor.said[-1].type == lsp.MessageType.Info
    editor.change(uri, RUN_LINE.replace("nd.sqrt", "nd.absent") + NORM)
    assert editor.command(RUN, uri, 1) is None
    assert "nd.absent" in editor.said[-1].message and editor.said[-1].type == lsp.MessageType.Error
    assert editor.command(LOWER, uri, "cpu", "nowhere") is None
    assert editor.said[-1].message == "there is no level 'nowhere' of a target 'cpu'"
    editor.close(uri)


def test_a_wrong_name_is_put_right(editor, norm):
    text = NORM.replace("nd.sqrt", "nd.sqrrt")
    editor.change(norm, text)
    ((line, column, _),) = editor.diagnostics(norm)

    def actions(line, column):
        here = lsp.Position(line, column)
        asked = lsp.CodeActionParams(lsp.TextDocumentIdentifier(norm), lsp.Range(here, here), lsp.CodeActionContext([]))
        return [one for one in editor.wait(editor.client.text_document_code_action_async(asked)) if isinstance(one, lsp.CodeAction)]

    (fix,) = actions(line, column + 2)
    assert fix.title == "Change to 'nd.sqrt'" and fix.kind == lsp.CodeActionKind.QuickFix and fix.diagnostics[0].range.start.line == line
    (edit,) = fix.edit.changes[norm]
    rows = text.split("\n")
    rows[line] = rows[line][: edit.range.start.character] + edit.new_text + rows[line][edit.range.end.character :]
    assert "\n".join(rows) == NORM
    assert actions(0, 0) == []


def test_an_editor_that_opens_no_files_is_told_where_they_lie(monkeypatch):
    server, said = Server(), []
    monkeypatch.setattr(Server, "client_capabilities", lsp.ClientCapabilities())
    monkeypatch.setattr(server, "window_show_message", said.append)
    monkeypatch.setattr(server, "window_log_message", lambda params: None)
    found = asyncio.run(_shown(server, "x.loop.mlir", lambda: "the text"))
    assert found["text"] == "the text" and Path(path_of(found["uri"])).read_text() == "the text"
    assert said[-1].message == f"written to {path_of(found['uri'])}"
    server.say("\n".join(map(str, range(40))), lsp.MessageType.Error)
    assert said[-1].message.endswith("10\n11\n...")
    server.close()
    assert not Path(path_of(found["uri"])).exists()
