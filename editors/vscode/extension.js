// Starts `stepwell lsp` and shows its commands. There is no build step: VS Code loads this file as it is.
"use strict";

const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

const LANGUAGES = ["stepwell", "mlir"];
const LOWER = "stepwell.lower";
const RUN = "stepwell.run";

/** @type {LanguageClient | undefined} */
let client;

async function start() {
  const [command, ...args] = vscode.workspace.getConfiguration("stepwell").get("command");
  const documentSelector = LANGUAGES.flatMap((language) =>
    ["file", "untitled"].map((scheme) => ({ scheme, language }))
  );
  client = new LanguageClient("stepwell", "stepwell", { command, args }, { documentSelector });
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    const how = "pip install 'stepwell[lsp]', and name the command in the setting stepwell.command";
    vscode.window.showErrorMessage(`stepwell: '${command}' could not be started (${error.message}): ${how}`);
  }
}

async function stop() {
  const old = client;
  client = undefined;
  await old?.stop();
}

/** Let the user choose among the server's actions of one command for the file, and do it. */
async function pick(command, none) {
  const editor = vscode.window.activeTextEditor;
  if (editor === undefined) return;
  const actions = await vscode.commands.executeCommand(
    "vscode.executeCodeActionProvider", editor.document.uri, editor.selection
  );
  // an action is a command, or has one
  const found = (actions ?? []).map((action) => (typeof action.command === "object" ? action.command : action));
  const items = found
    .filter((one) => one.command === command)
    .map((one) => ({ label: one.title, one }));
  if (items.length === 0) {
    vscode.window.showInformationMessage(`stepwell: ${none}`);
    return;
  }
  const chosen = await vscode.window.showQuickPick(items);
  if (chosen !== undefined) {
    await vscode.commands.executeCommand(chosen.one.command, ...chosen.one.arguments);
  }
}

async function activate(context) {
  context.subscriptions.push(
    vscode.commands.registerCommand("stepwell.pickLevel", () =>
      pick(LOWER, "this file is at the last level, or has mistakes")
    ),
    vscode.commands.registerCommand("stepwell.pickRunLine", () => pick(RUN, "this file has no RUN line")),
    vscode.commands.registerCommand("stepwell.restart", async () => {
      await stop();
      await start();
    })
  );
  await start();
}

module.exports = { activate, deactivate: stop };
