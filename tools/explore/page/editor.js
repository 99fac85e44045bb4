// Where a level is edited: CodeMirror where a package brings it, else a plain area of text.

/** An editor that calls `changed` when its user changed the text. */
function makeEditor(changed) {
  return typeof CodeMirror === "undefined" ? new PlainEditor(changed) : new CodeEditor(changed);
}

class PlainEditor {
  constructor(changed) {
    this.area = h("textarea", { class: "code", spellcheck: "false", wrap: "off", "aria-label": "Text of the level", input: changed, scroll: () => this.place() });
    this.mark = h("div", { class: "mistake", hidden: true, role: "alert" });
    this.element = h("div", { class: "editor" }, this.area, this.mark);
  }

  get text() {
    return this.area.value;
  }

  set text(text) {
    this.area.value = text;
  }

  focus() {
    this.area.focus();
  }

  /** Show a mistake (its line, or 0, and what it is) at its line, or none. */
  mistake(one) {
    this.wrong = one;
    this.mark.hidden = !one;
    if (!one) return;
    this.mark.textContent = mistakeText(one);
    const top = (one.line - 1) * LINE_PIXELS;
    if (one.line && (top < this.area.scrollTop || top > this.area.scrollTop + this.area.clientHeight - 3 * LINE_PIXELS)) this.area.scrollTop = Math.max(0, top - 90);
    this.place();
  }

  place() {
    if (!this.wrong) return;
    const top = this.wrong.line * LINE_PIXELS + 6 - this.area.scrollTop;
    this.mark.style.top = `${Math.max(0, Math.min(top, this.area.clientHeight - 24))}px`;
  }
}

class CodeEditor {
  constructor(changed) {
    this.element = h("div", { class: "editor" });
    this.view = CodeMirror(this.element, {
      mode: "stepwell", lineNumbers: true, foldGutter: true, gutters: ["CodeMirror-linenumbers", "CodeMirror-foldgutter"],
      foldOptions: { rangeFinder: CodeMirror.fold.brace }, extraKeys: { Tab: false, "Shift-Tab": false },  // Tab leads on
    });
    this.view.getInputField().setAttribute("aria-label", "Text of the level");
    this.view.on("change", (_, change) => change.origin !== "setValue" && changed());
    new ResizeObserver(() => this.view.refresh()).observe(this.element);  // it measures nothing while it is hidden
  }

  get text() {
    return this.view.getValue();
  }

  set text(text) {
    this.view.setValue(text);
  }

  focus() {
    this.view.focus();
  }

  mistake(one) {
    this.widget?.clear();
    this.widget = null;
    if (!one) return;
    const line = Math.min(Math.max(0, one.line - 1), this.view.lastLine());
    this.widget = this.view.addLineWidget(line, h("div", { class: "mistake inline", role: "alert" }, mistakeText(one)));
    this.view.scrollIntoView({ line, ch: 0 }, 60);
  }
}

function mistakeText(one) {
  return (one.line ? `line ${one.line}: ` : "") + one.message;
}

/** The colours of the panes in CodeMirror. */
if (typeof CodeMirror !== "undefined") {
  CodeMirror.defineMode("stepwell", () => {
    let line = null, words = [];
    return {
      token(stream) {
        if (stream.string !== line) [line, words] = [stream.string, tokens("mlir", stream.string)];
        let end = 0;
        for (const [name, text] of words) {
          end += text.length;
          if (end <= stream.pos) continue;
          stream.pos = end;
          return name || null;
        }
        stream.skipToEnd();
        return null;
      },
    };
  });
}
