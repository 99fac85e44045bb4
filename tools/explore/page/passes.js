// The passes: what each changed, side by side, and why.

/** [kind, number before, text before, number after, text after] of each row of a unified difference. */
function differenceRows(text) {
  const rows = [];
  let before = 0, after = 0, gone = [], come = [];
  const flush = () => {
    for (let k = 0; k < Math.max(gone.length, come.length); k++) rows.push(["change", ...(gone[k] ?? ["", ""]), ...(come[k] ?? ["", ""])]);
    [gone, come] = [[], []];
  };
  for (const line of text.replace(/\n$/, "").split("\n")) {
    const head = /^@@ -(\d+),\d+ \+(\d+),\d+ @@/.exec(line);
    if (head) {
      flush();
      [before, after] = [Number(head[1]), Number(head[2])];
      rows.push(["head", "", line, "", ""]);
    } else if (line[0] === "-") gone.push([before++, line.slice(1)]);
    else if (line[0] === "+") come.push([after++, line.slice(1)]);
    else {
      flush();
      rows.push(["same", before++, line.slice(1), after++, line.slice(1)]);
    }
  }
  flush();
  return rows;
}

/** The same of two whole texts, of which `changed` ranges [a, b, c, d] differ. */
function wholeRows(before, after, changed) {
  const old = before.replace(/\n$/, "").split("\n"), now = after.replace(/\n$/, "").split("\n"), rows = [];
  let a = 0, c = 0;
  for (const [from, to, into, end] of [...changed, [old.length, old.length, now.length, now.length]]) {
    for (; a < from; a++, c++) rows.push(["same", a + 1, old[a], c + 1, now[c]]);
    for (; a < to || c < end; a++, c++)
      rows.push(["change", ...(a < to ? [a + 1, old[a]] : ["", ""]), ...(c < end ? [c + 1, now[c]] : ["", ""])]);
    [a, c] = [to, end];
  }
  return rows;
}

class PassesView {
  constructor(app) {
    this.app = app;
    this.onlyChanged = true;
    this.list = h("div", { class: "passlist" });
    this.what = h("div", { class: "passhead", "aria-live": "polite" });
    this.rows = [];
    this.view = new Rows("Before and after the pass", (k) => this.row(k));
    this.view.element.classList.add("difference");
    this.view.element.addEventListener("scroll", () => this.shift());
    new ResizeObserver(() => this.shift()).observe(this.view.element);
    this.why = h("div", { class: "why" });
    this.element = h("div", { class: "passes" }, this.list, h("div", { class: "pass" }, this.what, this.view.element, this.why));
  }

  show(graph) {
    this.graph = graph;
    this.all = graph.raw.passes;
    this.number = Math.max(0, this.all.findIndex((one) => one.added !== undefined));
    this.draw();
    this.choose(this.number);
  }

  /** Both sides are moved by the one bar: a row is as wide as what is seen and what of the longest line is not. */
  shift() {
    const box = this.view.element, inner = this.view.inner;
    inner.style.setProperty("--seen", `${box.clientWidth}px`);
    inner.style.setProperty("--shift", `${-box.scrollLeft}px`);
    inner.style.minWidth = `calc(${box.clientWidth / 2}px + ${(this.longest ?? 0) + 8}ch)`;
  }

  draw() {
    const box = h("input", { type: "checkbox", id: "only-changed", change: (event) => { this.onlyChanged = event.target.checked; this.draw(); } });
    box.checked = this.onlyChanged;
    const rows = this.all.flatMap((one, k) => (this.onlyChanged && one.added === undefined && !one.remarks ? [] : [this.entry(one, k)]));
    this.list.replaceChildren(
      h("p", {}, box, h("label", { for: "only-changed" }, " only passes that changed or said something")),
      h("table", {}, h("thead", {}, h("tr", {}, ...["stage", "pass", "lines", "time"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, ...rows)));
  }

  entry(one, k) {
    const lines = one.added === undefined ? "" : `+${one.added} −${one.removed}`;
    return h("tr", { class: k === this.number ? "chosen" : "" }, h("td", {}, one.stage),
      h("td", {}, h("button", { type: "button", class: "link", "aria-pressed": String(k === this.number), click: () => this.choose(k) }, one.name)),
      h("td", {}, lines), h("td", { class: "n" }, timeText(one.seconds * 1e6)));
  }

  choose(k) {
    const one = this.all[k];
    if (!one) return;
    this.number = k;
    this.draw();
    if (one.diff !== undefined) this.rows = differenceRows(this.graph.text(one.diff));
    else this.rows = one.before === undefined ? [] : wholeRows(this.graph.text(one.before), this.graph.text(one.after), one.changed);
    this.view.element.scrollTop = 0;
    this.view.element.hidden = !this.rows.length;
    this.longest = Math.max(20, ...this.rows.map((row) => Math.max(row[2].length, row[4].length)));
    this.shift();
    this.view.resize(this.rows.length, 0);
    this.head(one);
    this.reasons(one);
  }

  head(one) {
    const step = (by) => () => this.choose(this.next(by));
    const off = this.app.server && h("button", { type: "button", class: "small", click: () => this.app.views.run.add("disable_passes", one.name) }, "switch off");
    this.what.replaceChildren(
      h("button", { type: "button", class: "small", "aria-label": "previous pass", click: step(-1) }, "‹"),
      h("button", { type: "button", class: "small", "aria-label": "next pass", click: step(1) }, "›"),
      h("h2", {}, one.text), h("span", {}, one.added === undefined ? "changed nothing" : ""), off || "");
  }

  /** The nearest pass before or behind that the list shows. */
  next(by) {
    for (let k = this.number + by; k >= 0 && k < this.all.length; k += by)
      if (!this.onlyChanged || this.all[k].added !== undefined || this.all[k].remarks) return k;
    return this.number;
  }

  reasons(one) {
    const at = (places) => (places ?? []).map((k) => [this.graph.origins[k].name, this.graph.place(k)].filter(Boolean).join(" at ")).slice(0, 4).join(", ");
    const rules = (one.rewrites ?? []).map((r) => h("li", {}, `rule ${r.rule} on ${r.op}, ${r.count === 1 ? "once" : `${r.count} times`}: ${at(r.at)}`));
    const said = new Map();  // remark -> how often
    for (const r of one.remarks ?? []) {
      const text = `${r.kind}: ${r.op}${r.at ? ` (${at(r.at)})` : ""}: ${r.message}`;
      said.set(text, (said.get(text) ?? 0) + 1);
    }
    const remarks = [...said].map(([text, n]) => h("li", {}, n > 1 ? `${text} (${n} times)` : text));
    const counted = Object.entries(one.statistics ?? {}).map(([name, n]) => `${name} ${n}`).join(", ");
    this.why.replaceChildren(...[
      counted && h("p", {}, `counted: ${counted}`),
      rules.length > 0 && h("h3", {}, "Rules that rewrote"), rules.length > 0 && h("ul", {}, ...rules),
      remarks.length > 0 && h("h3", {}, "Remarks"), remarks.length > 0 && h("ul", {}, ...remarks),
    ].filter(Boolean));
  }

  row(k) {
    const [kind, before, old, after, now] = this.rows[k];
    const side = (number, text, name) => h("span", { class: `side ${name}` }, h("span", { class: "number" }, String(number)), h("span", { class: "moved" }, ...(kind === "head" ? [text] : tokens("mlir", text).map(([name, word]) => (name ? h("span", { class: name }, word) : word)))));
    const changed = kind === "change";
    return h("div", { class: `line ${kind}`, role: "option", "aria-selected": "false" },
      h("span", { class: "sides" }, side(before, old, changed && before !== "" ? "gone" : ""), side(after, now, changed && after !== "" ? "come" : "")));
  }
}
