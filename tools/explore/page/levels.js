// The panes: the program and every level side by side, linked.

const WIDE_PIXELS = 900;

class LevelsView {
  constructor(app) {
    this.app = app;
    this.open = null;
    this.choices = h("div", { class: "choices", role: "group", "aria-label": "Panes" });
    this.panes = h("div", { class: "panes" });
    this.details = h("aside", { class: "details", "aria-label": "What is chosen", "aria-live": "polite" });
    this.element = h("div", { class: "levels" }, this.choices, this.panes, this.details);
  }

  show(graph) {
    this.graph = graph;
    this.all = graph.panes();
    const names = this.all.map((pane) => pane.id);
    const wide = window.innerWidth >= WIDE_PIXELS;
    const first = this.all.find((pane) => pane.file !== undefined)?.id ?? names[0];
    const usual = wide ? [first, "nd", "loop", names.includes("tt") ? "tt" : "cpu"] : [first, "loop"];
    this.open = new Set((this.open ? [...this.open] : usual).filter((id) => names.includes(id)));
    this.viewers = new Map();
    this.chosen = [];
    this.draw();
    this.describe(null);
  }

  draw() {
    this.choices.replaceChildren(...this.all.map((pane) =>
      h("button", { type: "button", "aria-pressed": String(this.open.has(pane.id)), click: () => this.toggle(pane.id) }, pane.title)));
    this.panes.replaceChildren(...this.all.filter((pane) => this.open.has(pane.id)).map((pane) => this.pane(pane)));
    const missing = Object.entries(this.graph.raw.missing).map(([name, why]) => h("p", { class: "missing" }, `${name}: ${why}`));
    this.panes.append(...missing);
  }

  toggle(id) {
    this.open.has(id) ? this.open.delete(id) : this.open.add(id);
    this.draw();
    this.mark(this.chosen);
    this.bring(null);
  }

  pane(pane) {
    let viewer = this.viewers.get(pane.id);
    if (!viewer) {
      const source = pane.file !== undefined ? this.graph.data.sources[pane.file] : pane.level;
      const folds = new Map((pane.level?.operations ?? []).flatMap((op) => (op.end ? [[op.line, op.end]] : [])));
      viewer = new Viewer(pane.title, this.graph.text(source.text), pane.level?.language ?? "python", folds, {
        hover: (line) => this.mark(line ? this.graph.originsOfLine(pane, line) : this.chosen),
        choose: (line) => this.choose(pane, line),
      });
      this.viewers.set(pane.id, viewer);
    }
    const edit = this.app.server && pane.level?.language === "mlir" &&
      h("button", { type: "button", class: "small", click: () => this.app.views.run.edit(pane.id) }, "edit");
    return h("section", { class: "pane", "data-pane": pane.id }, h("h2", {}, pane.title, edit), viewer.element);
  }

  mark(origins) {
    for (const pane of this.all) if (this.open.has(pane.id)) this.viewers.get(pane.id).mark(this.graph.linesOf(pane, origins));
  }

  /** Scroll every pane but one to the first of its marked lines, where none is in sight. */
  bring(besides) {
    for (const pane of this.all) {
      const viewer = this.viewers.get(pane.id);
      if (!this.open.has(pane.id) || pane.id === besides || !viewer.marked.size) continue;
      if (![...viewer.marked].some((line) => inSight(viewer, line))) viewer.reveal(Math.min(...viewer.marked));
    }
  }

  choose(pane, line) {
    for (const [id, viewer] of this.viewers) if (id !== pane.id) viewer.chosen = 0;
    this.chosen = this.graph.originsOfLine(pane, line);
    this.describe(pane, line);
    this.mark(this.chosen);
    this.bring(pane.id);
  }

  /** Open a pane if need be, and choose a line of it. */
  go(id, line) {
    this.app.open("levels");
    if (!this.open.has(id)) this.toggle(id);
    const viewer = this.viewers.get(id), pane = this.all.find((one) => one.id === id);
    viewer.reveal(line);
    viewer.choose(line);
    viewer.element.focus();
  }

  clear() {
    this.chosen = [];
    for (const viewer of this.viewers.values()) viewer.chosen = 0;
    this.mark([]);
    this.describe(null);
  }

  describe(pane, line) {
    this.details.classList.toggle("idle", !pane);
    if (!pane) {
      this.details.replaceChildren(h("p", {}, "Point at a line to see what belongs to it in the other panes. Click it, or press Enter, to keep that."));
      return;
    }
    const number = pane.level && this.graph.operationsByLine(pane.id)[line];
    const parts = number === undefined ? [] : this.operation(pane, number);
    this.details.replaceChildren(...parts, ...this.places(), ...this.steps(pane, number));
  }

  operation(pane, number) {
    const op = pane.level.operations[number], known = this.graph.data;
    const values = (op.results ?? []).map((name, k) => `${name} : ${known.types[op.types?.[k]] ?? ""}`);
    const meaning = known.operations[op.op];
    return [
      h("h2", {}, op.op, op.symbol ? ` @${op.symbol}` : ""),
      meaning && h("p", {}, meaning),
      values.length > 0 && h("p", { class: "code" }, values.join(", ")),
      op.users && h("p", {}, "used by ", ...op.users.slice(0, 12).map((user) => this.link(pane.id, user))),
      op.calls && h("p", {}, "calls ", h("span", { class: "code" }, `@${op.calls}`)),
    ].filter(Boolean);
  }

  link(level, number) {
    const op = this.graph.levels.get(level).operations[number];
    return h("button", { type: "button", class: "small", click: () => this.go(level, op.line) }, `${op.results?.[0] ?? op.op} (line ${op.line})`);
  }

  places() {
    if (!this.chosen.length) return [h("p", {}, "It comes from no line of the program.")];
    const names = this.chosen.map((k) => [this.graph.origins[k].name, this.graph.place(k)].filter(Boolean).join(" at "));
    const shown = names.slice(0, 8).join(", ") + (names.length > 8 ? ` and ${names.length - 8} more` : "");
    return [h("p", {}, `from ${shown}`)];
  }

  steps(pane, number) {
    const own = number !== undefined && this.graph.stepOf(pane.id, number);
    const names = new Set(this.chosen.map((k) => this.graph.origins[k].name));
    const steps = own ? [own] : this.graph.raw.kernels.filter((step) => step.operators.some((name) => names.has(name)));
    return steps.slice(0, 4).map((step) => h("p", {}, `step ${step.number} ${step.label}: ${bytesText(step.bytes)}, predicted ${timeText(step.predicted_us)}` +
      (step.measured_us ? `, measured ${timeText(step.measured_us)}` : "") + `, spent on ${step.bound}` + (step.schedule ? `, schedule: ${step.schedule}` : "") +
      (step.resources ? `; ${resourcesText(step.resources)}` : "")));
  }

  /** [pane id, line, text] of up to `most` lines that have a text in them. */
  search(text, most) {
    const found = [], wanted = text.toLowerCase();
    for (const pane of this.all) {
      const source = pane.file !== undefined ? this.graph.data.sources[pane.file] : pane.level;
      const lines = this.graph.text(source.text).split("\n");
      for (let k = 0; k < lines.length && found.length < most; k++)
        if (lines[k].toLowerCase().includes(wanted)) found.push([pane, k + 1, lines[k].trim()]);
    }
    return found;
  }
}

function inSight(viewer, line) {
  const top = viewer.shown.indexOf(line) * LINE_PIXELS, box = viewer.element;
  return top >= box.scrollTop && top < box.scrollTop + box.clientHeight - LINE_PIXELS;
}
