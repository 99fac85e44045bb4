// The panes: the program and every level side by side, linked.

const WIDE_PIXELS = 900;
/** How much the details show of each kind. */
const MAX_LINKS = 12, MAX_STEPS = 4, MAX_REASONS = 3;

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
    for (const pane of this.all) if (pane.file !== undefined && this.open.has(pane.id)) this.viewers.get(pane.id).reveal(this.firstLine(pane));
    this.describe(null);
  }

  /** The first line of a file from which something of the graph comes. */
  firstLine(pane) {
    const lines = this.graph.origins.flatMap((one) => (one.file === pane.file && one.line ? [one.line] : []));
    return lines.length ? lines.reduce((a, b) => Math.min(a, b)) : 1;
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
      viewer = new Viewer(pane.title, this.graph.text(source.text), pane.level?.language ?? "python", folds, this.graph.prices(pane), {
        hover: (line, value) => this.hover(pane, line, value),
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

  /** Mark what belongs to a line or, where a value is pointed at, to the operation that it comes from; its uses in the same pane, too. */
  hover(pane, line, value) {
    if (!line) return this.mark(this.chosen);
    const number = value && pane.level ? this.graph.definition(pane.id, line, value) : undefined;
    this.mark(number === undefined ? this.graph.originsOfLine(pane, line) : pane.level.operations[number].at ?? []);
    if (!value) return undefined;
    const viewer = this.viewers.get(pane.id);
    return viewer.mark(number === undefined ? viewer.marked : this.graph.linesOfValue(pane.id, number), value);
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
    this.at = [pane, line];
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
      this.details.replaceChildren(h("p", {}, "Point at a line or a value to see what belongs to it in the other panes. Click a line, or press Enter, to keep that " +
        "and read what became of it. Press ? for all keys."));
      return;
    }
    const number = pane.level && this.graph.operationsByLine(pane.id)[line];
    const names = new Set(this.chosen.map((k) => this.graph.origins[k].name));
    const parts = [number === undefined ? null : this.operation(pane, number), [...this.places(), ...this.elsewhere()], this.steps(pane, number, names), this.reasons(names)];
    this.details.replaceChildren(...parts.filter((part) => part?.length).map((part) => h("div", {}, ...part)));
  }

  operation(pane, number) {
    const op = pane.level.operations[number], known = this.graph.data;
    const values = (op.results ?? []).map((name, k) => `${name} : ${known.types[op.types?.[k]] ?? ""}`);
    const meaning = known.operations[op.op], operands = this.graph.operandsOf(pane.id, number);
    return [
      h("h2", {}, op.op, op.symbol ? ` @${op.symbol}` : ""),
      meaning && h("p", {}, ...prose(meaning)),
      values.length > 0 && h("p", { class: "code" }, values.join(", ")),
      operands.length > 0 && h("p", {}, "uses ", ...this.links(pane.id, operands)),
      op.users && h("p", {}, "used by ", ...this.links(pane.id, op.users)),
      op.calls && h("p", {}, "calls ", h("span", { class: "code" }, `@${op.calls}`)),
    ].filter(Boolean);
  }

  /** Buttons that lead to operations of a level. */
  links(level, numbers) {
    const ops = this.graph.levels.get(level).operations;
    const made = numbers.slice(0, MAX_LINKS).map((k) => h("button", { type: "button", class: "small", click: () => this.go(level, ops[k].line) },
      `${ops[k].results?.[0] ?? ops[k].op} (line ${ops[k].line})`));
    return numbers.length > MAX_LINKS ? [...made, ` and ${numbers.length - MAX_LINKS} more`] : made;
  }

  places() {
    if (!this.chosen.length) return [h("p", {}, "Nothing of this graph belongs to this line.")];
    const names = this.chosen.map((k) => [this.graph.origins[k].name, this.graph.place(k)].filter(Boolean).join(" at "));
    const shown = names.slice(0, 8).join(", ") + (names.length > 8 ? ` and ${names.length - 8} more` : "");
    return [h("p", {}, `from ${shown}`)];
  }

  /** What the lines became in the other graphs. */
  elsewhere() {
    const key = (file, line) => `${file}:${line}`, data = this.graph.data;
    const lines = new Set(this.lines.map(([file, line]) => key(data.sources[file].file, line)));
    return data.graphs.flatMap((graph, k) => {
      const steps = k === this.app.number ? [] : graph.kernels.filter((step) => step.places.some((place) => lines.has(key(place.file, place.line))));
      if (!steps.length) return [];
      const us = steps.reduce((sum, step) => sum + step.predicted_us, 0);
      return [h("p", {}, `${graph.title}: ${steps.length} ${steps.length === 1 ? "step" : "steps"}, predicted ${timeText(us)} `,
        h("button", { type: "button", class: "small", click: () => this.follow(k) }, "show"))];
    });
  }

  /** [place in `sources`, line] of each line of the program that is chosen. */
  get lines() {
    const [pane, line] = this.at;
    const found = this.chosen.map((k) => this.graph.origins[k]).filter((one) => one.file !== null && one.line).map((one) => [one.file, one.line]);
    return pane.file !== undefined ? [[pane.file, line], ...found] : found;
  }

  /** Show another graph, the same line of the program chosen. */
  follow(number) {
    const [file, line] = this.lines[0];
    this.app.show(number);
    this.go(`file:${file}`, line);
  }

  steps(pane, number, names) {
    const own = number !== undefined && this.graph.stepOf(pane.id, number);
    const steps = own ? [own] : this.graph.raw.kernels.filter((step) => step.operators.some((name) => names.has(name)));
    const shown = steps.slice(0, MAX_STEPS).map((step) => h("p", {}, this.stepLink(step), `: ${bytesText(step.bytes)}, predicted ${timeText(step.predicted_us)}` +
      (step.measured_us ? `, measured ${timeText(step.measured_us)}` : "") + `, spent on ${step.bound}` + (step.schedule ? `, schedule: ${step.schedule}` : "") +
      (step.resources ? `; ${resourcesText(step.resources)}` : "")));
    return [...shown, ...(steps.length > MAX_STEPS ? [h("p", {}, `and ${steps.length - MAX_STEPS} steps more`)] : [])];
  }

  stepLink(step) {
    const text = `step ${step.number} ${step.label}`, op = step.operations?.mem;
    return op === undefined ? text : h("button", { type: "button", class: "link", click: () => this.go("mem", this.graph.levels.get("mem").operations[op].line) }, text);
  }

  /** Why what is chosen was joined with something, refusals and large prices first. */
  reasons(names) {
    const own = (label) => names.has(label) || names.has(label.replace(/\.\d+$/, ""));
    const pairs = this.graph.raw.plan.pairs.filter((one) => [one.first, ...one.second.split(", ")].some(own));
    pairs.sort((a, b) => a.fused - b.fused || b.bytes - a.bytes);
    const shown = pairs.slice(0, MAX_REASONS).map((one) => h("p", {}, h("b", {}, one.fused ? "fused: " : "not fused: "), `${one.first} with ${one.second}, ${one.reason} (${bytesText(one.bytes)})`));
    const rest = pairs.length - shown.length;
    return [...shown, ...(rest ? [h("p", {}, h("button", { type: "button", class: "link", click: () => this.app.views.plan.find([...names][0]) }, `${rest} more reasons`))] : [])];
  }

  /** [pane id, line, text] of up to `most` lines that have a text in them. */
  search(text, most) {
    const found = this.placed(text), wanted = text.toLowerCase();
    for (const pane of this.all) {
      const source = pane.file !== undefined ? this.graph.data.sources[pane.file] : pane.level;
      const lines = this.graph.text(source.text).split("\n");
      for (let k = 0; k < lines.length && found.length < most; k++)
        if (lines[k].toLowerCase().includes(wanted)) found.push([pane, k + 1, lines[k].trim()]);
    }
    return found;
  }

  /** The same of a place such as `model.py:12` or `loop:40`. */
  placed(text) {
    const [, name, number] = /^([\w./-]+):(\d+)$/.exec(text) ?? [], line = Number(number);
    return this.all.filter((pane) => name && pane.title.startsWith(fileName(name))).flatMap((pane) => {
      const lines = this.graph.text((pane.file !== undefined ? this.graph.data.sources[pane.file] : pane.level).text).split("\n");
      return line >= 1 && line <= lines.length ? [[pane, line, lines[line - 1].trim()]] : [];
    });
  }
}

function inSight(viewer, line) {
  const top = viewer.shown.indexOf(line) * LINE_PIXELS, box = viewer.element;
  return top >= box.scrollTop && top < box.scrollTop + box.clientHeight - LINE_PIXELS;
}
