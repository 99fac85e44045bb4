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

/** How many places of a rule or a remark are named. */
const MAX_PLACES = 6;

class PassesView {
  constructor(app) {
    this.app = app;
    this.onlyChanged = true;
    this.list = h("div", { class: "passlist" });
    this.what = h("div", { class: "passhead", "aria-live": "polite" });
    this.rows = [];
    [this.led, this.marked] = [-1, new Set()];  // the row that was led to last, and those beside it
    [this.rowsAt, this.because] = [new Map(), new Map()];
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
    const each = this.app.server && h("p", {}, h("button", { type: "button", class: "small", click: () => this.app.views.run.eachOff() }, "switch off each in turn"));
    this.list.replaceChildren(
      h("p", {}, box, h("label", { for: "only-changed" }, " only passes that changed or said something")), each || "",
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
    [this.led, this.marked] = [-1, new Set()];
    this.link(one);
    this.view.element.scrollTop = 0;
    this.view.element.hidden = !this.rows.length;
    this.longest = Math.max(longest(this.rows.map((row) => row[2])), longest(this.rows.map((row) => row[4])));
    this.shift();
    this.view.resize(this.rows.length, 0);
    this.head(one);
    this.reasons(one);
  }

  head(one) {
    const step = (by) => () => this.choose(this.next(by));
    const off = this.app.server && !one.needed && h("button", { type: "button", class: "small", click: () => this.app.views.run.add("disable_passes", one.name) }, "switch off");
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
    const rules = (one.rewrites ?? []).map((r) => h("li", {}, `rule ${r.rule} on ${r.op}, ${r.count === 1 ? "once" : `${r.count} times`}: `, ...this.at(r.at)));
    const said = new Map();  // remark -> how often, and where
    for (const r of one.remarks ?? []) {
      const text = `${r.kind}: ${r.op}: ${r.message}`, known = said.get(text) ?? [0, new Set()];
      said.set(text, [known[0] + 1, new Set([...known[1], ...(r.at ?? [])])]);
    }
    const remarks = [...said].map(([text, [n, places]]) => h("li", {}, ...prose(n > 1 ? `${text} (${n} times) ` : `${text} `), ...this.at([...places])));
    const counted = Object.entries(one.statistics ?? {}).map(([name, n]) => `${name} ${n}`).join(", ");
    this.why.replaceChildren(...[
      counted && h("p", {}, `counted: ${counted}`),
      rules.length > 0 && h("h3", {}, "Rules that rewrote"), rules.length > 0 && h("ul", {}, ...rules),
      remarks.length > 0 && h("h3", {}, "Remarks"), remarks.length > 0 && h("ul", {}, ...remarks),
    ].filter(Boolean));
  }

  /** Origins, each a button that leads to the rows of what came from it. */
  at(places) {
    const shown = (places ?? []).slice(0, MAX_PLACES).flatMap((k, number) => {
      const text = [this.graph.origins[k].name, this.graph.place(k)].filter(Boolean).join(" at "), rows = this.rowsAt.get(k) ?? [];
      return [number ? ", " : "", rows.length ? h("button", { type: "button", class: "link", click: () => this.lead(rows) }, text) : text];
    });
    return (places ?? []).length > MAX_PLACES ? [...shown, ` and ${places.length - MAX_PLACES} more`] : shown;
  }

  /** Origin -> the changed rows that have it, and row -> the rules and remarks that name one of its origins. */
  link(one) {
    const sides = [["removed_at", 1], ["added_at", 3]].map(([key, column]) => [column, new Map((one[key] ?? []).map(([line, ...places]) => [line, places]))]);
    const said = [...(one.rewrites ?? []).map((r) => [r.at, `rule ${r.rule}`]), ...(one.remarks ?? []).map((r) => [r.at ?? [], `${r.kind}: ${r.message}`])];
    const behind = new Map();  // origin -> texts
    for (const [places, text] of said) for (const k of places) behind.set(k, [...(behind.get(k) ?? []), text]);
    [this.rowsAt, this.because] = [new Map(), new Map()];
    this.rows.forEach((row, number) => {
      if (row[0] !== "change") return;
      const places = new Set(sides.flatMap(([column, known]) => known.get(row[column]) ?? []));
      for (const k of places) this.rowsAt.set(k, [...(this.rowsAt.get(k) ?? []), number]);
      const texts = new Set([...places].flatMap((k) => behind.get(k) ?? []));
      if (texts.size) this.because.set(number, [...texts].join("\n"));
    });
  }

  /** Mark rows, and show the first of them; at another time the next one. */
  lead(rows) {
    const next = rows.find((k) => k > this.led) ?? rows[0];
    [this.led, this.marked] = [next, new Set(rows)];
    this.view.show(next);
  }

  row(k) {
    const [kind, before, old, after, now] = this.rows[k];
    const side = (number, text, name) => h("span", { class: `side ${name}` }, h("span", { class: "number" }, String(number)), h("span", { class: "moved" }, ...(kind === "head" ? [text] : coloured("mlir", text, this.view.columns))));
    const changed = kind === "change";
    return h("div", { class: `line ${kind}${this.marked.has(k) ? " found" : ""}`, role: "option", "aria-selected": "false", title: this.because.get(k) },
      h("span", { class: "sides" }, side(before, old, changed && before !== "" ? "gone" : ""), side(after, now, changed && after !== "" ? "come" : "")));
  }
}
