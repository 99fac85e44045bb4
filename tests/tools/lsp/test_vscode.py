"""The extension of VS Code: its files are there and well formed, and its commands are those of the server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "editors/vscode"
MANIFEST = json.loads((FOLDER / "package.json").read_text())
CODE = (FOLDER / MANIFEST["main"]).read_text()

ACTED_OUT = r"""
const Module = require("module");
const registered = {}, done = [], picked = [];
const actions = [
  { title: "Lower to mem (cpu)", command: "stepwell.lower", arguments: ["uri", "cpu", "mem"] },
  { title: "Run: x", command: { title: "Run: x", command: "stepwell.run", arguments: ["uri", 1] } },
];
const vscode = {
  workspace: { getConfiguration: () => ({ get: () => ["stepwell", "lsp"] }) },
  window: {
    activeTextEditor: { document: { uri: "uri" }, selection: {} },
    showQuickPick: async (items) => (picked.push(items.map((item) => item.label)), items[0]),
    showErrorMessage: (text) => done.push(["error", text]),
    showInformationMessage: (text) => done.push(["information", text]),
  },
  commands: {
    registerCommand: (name, run) => (registered[name] = run),
    executeCommand: async (name, ...rest) => name === "vscode.executeCodeActionProvider" ? actions : done.push([name, ...rest]),
  },
};
class LanguageClient {
  constructor(id, name, server, client) { done.push(["client", server, client.documentSelector.map((one) => one.language)]); }
  async start() { done.push(["start"]); }
  async stop() { done.push(["stop"]); }
}
const load = Module._load;
Module._load = (name, ...rest) =>
  name === "vscode" ? vscode : name === "vscode-languageclient/node" ? { LanguageClient } : load(name, ...rest);
(async () => {
  const extension = require(process.argv[1]);
  await extension.activate({ subscriptions: [] });
  await registered["stepwell.pickLevel"]();
  await registered["stepwell.pickRunLine"]();
  await registered["stepwell.restart"]();
  actions.length = 0;
  await registered["stepwell.pickRunLine"]();
  await extension.deactivate();
  console.log(JSON.stringify({ registered: Object.keys(registered), done, picked }));
})();
"""


def test_files_are_json_and_those_that_it_names_are_there():
    for file in FOLDER.glob("*.json"):
        json.loads(file.read_text())
    named = [MANIFEST["main"], *(one["configuration"] for one in MANIFEST["contributes"]["languages"])]
    named += [grammar["path"] for grammar in MANIFEST["contributes"]["grammars"]]
    assert [name for name in named if not (FOLDER / name).is_file()] == []


def test_the_grammar_is_that_of_the_language():
    (grammar,), (language,) = MANIFEST["contributes"]["grammars"], MANIFEST["contributes"]["languages"]
    assert grammar["scopeName"] == json.loads((FOLDER / grammar["path"]).read_text())["scopeName"]
    assert grammar["language"] == language["id"] and language["extensions"] == [".mlir"]


def test_words_of_the_language_keep_their_signs():
    pattern = json.loads((FOLDER / "language-configuration.json").read_text())["wordPattern"]
    assert re.findall(pattern, "%y = nd.add %x#0 : !nd.tensor") == ["%y", "nd.add", "%x", "#0", "!nd.tensor"]


def test_the_server_s_commands_are_called_by_its_names():
    pytest.importorskip("pygls", reason="pygls is not installed (the extra 'lsp')")
    from stepwell.tools.lsp.server import COMMANDS

    assert sorted(re.findall(r'^const (?:LOWER|RUN) = "([\w.]+)";$', CODE, re.MULTILINE)) == sorted(COMMANDS)
    assert MANIFEST["contributes"]["configuration"]["properties"]["stepwell.command"]["default"] == ["stepwell", "lsp"]


def test_it_registers_its_commands_and_passes_on_what_is_picked():
    if shutil.which("node") is None:
        pytest.skip("there is no node")
    done = subprocess.run(["node", "-e", ACTED_OUT, str(FOLDER / MANIFEST["main"])], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["registered"] == [one["command"] for one in MANIFEST["contributes"]["commands"]]
    assert found["picked"] == [["Lower to mem (cpu)"], ["Run: x"]]
    client = ["client", {"command": "stepwell", "args": ["lsp"]}, ["stepwell", "stepwell", "mlir", "mlir"]]
    assert found["done"] == [
        client, ["start"], ["stepwell.lower", "uri", "cpu", "mem"], ["stepwell.run", "uri", 1], ["stop"], client, ["start"],
        ["information", "stepwell: this file has no RUN line"], ["stop"],
    ]  # fmt: skip
