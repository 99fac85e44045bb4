// What only a server can do: compile again with other options, and run a level that was edited.

const OPTIONS = {
  disable_passes: { title: "switch off a pass", hint: "loop-fuse", read: (text) => text },
  no_fuse: { title: "keep apart", hint: "exp, or model.py:12", read: (text) => text },
  fuse: { title: "fuse", hint: "sum_1+cos", read: (text) => text.split("+").map((name) => name.trim()) },
  tile: { title: "tile", hint: "add=8,64", read: numbersOf },
  loop_order: { title: "order of loops", hint: "mul=1,0", read: numbersOf },
};
const CHECK_AFTER_MS = 400;
const EACH = "Switch off each pass in turn";

function numbersOf(text) {
  const found = /^\s*(.+?)\s*=\s*(\d+(?:\s*,\s*\d+)*)\s*$/.exec(text);
  if (!found) throw new Error(`expected NAME=NUMBER,NUMBER and got '${text}'`);
  return [found[1], found[2].split(",").map(Number)];
}

class RunView {
  constructor(app) {
    this.app = app;
    this.first = app.data;
    this.wanted = [];  // [option, text]
    this.chips = h("ul", { class: "chips", "aria-label": "What is overruled" });
    this.kind = h("select", { "aria-label": "What to overrule", change: () => { this.text.placeholder = OPTIONS[this.kind.value].hint; } },
      ...Object.entries(OPTIONS).map(([name, one]) => h("option", { value: name }, one.title)));
    this.text = h("input", { "aria-label": "Of what", placeholder: OPTIONS.disable_passes.hint,
      keydown: (event) => { if (event.key === "Enter") this.take(); } });
    this.measure = h("input", { type: "checkbox", id: "measure" });
    this.measure.checked = Boolean(app.data.call.measure);
    this.button = h("button", { type: "button", click: () => this.rerun() }, "Compile again");
    this.each = h("button", { type: "button", click: () => (this.turn ? this.turn = 0 : this.eachOff()) }, EACH);
    this.said = h("div", { class: "said", "aria-live": "polite" });
    this.level = h("select", { "aria-label": "Level to edit", change: () => this.edit(this.level.value) });
    this.editor = makeEditor(() => this.soon());
    this.result = h("div", { class: "said", "aria-live": "polite" });
    this.element = h("div", { class: "run" },
      h("h2", {}, "Compile again"), h("p", {}, this.kind, " ", this.text, " ", h("button", { type: "button", click: () => this.take() }, "Add")),
      this.chips, h("p", {}, this.measure, h("label", { for: "measure" }, " run each kernel by itself too "), this.button, " ", this.each), this.said,
      h("h2", {}, "Edit a level, and run it"),
      h("p", {}, this.level, " ", h("button", { type: "button", click: () => this.run() }, "Run"), " ",
        h("button", { type: "button", click: () => this.lower() }, "Compile from here"), " ",
        h("button", { type: "button", click: () => this.edit(this.level.value) }, "As it was")),
      this.editor.element, this.result);
  }

  show() {
    this.editing = Math.min(this.app.number, this.first.graphs.length - 1);
    const levels = this.first.graphs[this.editing]?.levels.filter((level) => level.language === "mlir").map((level) => level.name) ?? [];
    this.level.replaceChildren(...levels.map((name) => h("option", { value: name }, name)));
    this.fill(levels.includes("loop") ? "loop" : levels[0]);
  }

  // ---- compile again

  add(option, text) {
    this.app.open("run");
    if (!this.wanted.some(([o, t]) => o === option && t === text)) this.wanted.push([option, text]);
    this.draw();
    this.button.focus();
  }

  /** Open at an option whose text the user goes on with. */
  begin(option, text) {
    this.app.open("run");
    this.kind.value = option;
    this.text.value = text;
    this.text.focus();
  }

  take() {
    if (!this.text.value.trim()) return;
    this.add(this.kind.value, this.text.value.trim());
    this.text.value = "";
  }

  draw() {
    this.chips.replaceChildren(...this.wanted.map((one) => h("li", {}, `${OPTIONS[one[0]].title}: ${one[1]} `, h("button", {
      type: "button", class: "small", "aria-label": `take back ${one[1]}`, click: () => { this.wanted = this.wanted.filter((other) => other !== one); this.draw(); },
    }, "×"))));
  }

  options() {
    const found = { disable_passes: [], no_fuse: [], fuse: [], tile: {}, loop_order: {} };
    for (const [option, text] of this.wanted) {
      const value = OPTIONS[option].read(text);
      if (Array.isArray(found[option])) found[option].push(value);
      else found[option][value[0]] = value[1];
    }
    return found;
  }

  async rerun() {
    await this.asking(this.said, async () => {
      const found = await this.ask("rerun", { options: this.options(), measure: this.measure.checked });
      this.app.replace(found.document);
      const runs = [];
      const draw = () => this.said.replaceChildren(this.compared(found.comparison, runs), this.back());
      for (let graph = 0; graph < found.comparison.length; graph++) {
        draw();
        runs.push((await this.ask("results", { graph })).run);
      }
      draw();
    });
  }

  /** Compile without each of the passes that changed something, one after the other, and list what that changes; until it is stopped. */
  async eachOff() {
    this.app.open("run");
    const passes = new Set(this.first.graphs.flatMap((graph) => graph.passes.filter((one) => one.added !== undefined && !one.needed).map((one) => one.name)));
    const turn = this.turn = (this.turns = (this.turns ?? 0) + 1), rows = [];
    this.each.textContent = "Stop";
    this.each.focus();
    for (const name of passes) {
      if (this.turn !== turn) break;
      this.drawEach(rows, passes.size, name);
      rows.push([name, ...await this.without(name)]);
    }
    if (this.turn === turn) this.turn = 0;
    if (!this.turn) this.each.textContent = EACH;
    this.drawEach(rows, passes.size, "");
  }

  drawEach(rows, count, next) {
    const heads = ["without", "steps", "bytes", "predicted", ...(this.measure.checked ? ["kernels measured"] : []), "a call", "results"];
    this.said.replaceChildren(h("p", {}, next ? `${rows.length + 1} of ${count}: compiling without ${next} …` : `${rows.length} of ${count} passes that changed something, each left out alone.`),
      scrolling("Each pass left out", table(heads, rows, [])));
  }

  /** What all graphs together become without a pass. */
  async without(name) {
    const options = { ...this.options(), disable_passes: [...this.options().disable_passes, name] };
    try {
      const { comparison } = await this.ask("rerun", { options, measure: this.measure.checked, document: false });
      const runs = [];
      for (let graph = 0; graph < comparison.length; graph++) runs.push((await this.ask("results", { graph })).run);
      const sum = (list) => [0, 1].map((k) => list.reduce((all, pair) => all + pair[k], 0)), both = ([a, b], text) => (a === b ? text(a) : `${text(a)} → ${text(b)}`);
      const called = runs.filter((run) => run?.us).map((run) => [run.base_us, run.us]);
      const measured = this.measure.checked ? [both(sum(comparison.map((one) => one.measured_us)), timeText)] : [];
      return [both(sum(comparison.map((one) => one.steps)), String), both(sum(comparison.map((one) => one.bytes)), bytesText), both(sum(comparison.map((one) => one.predicted_us)), timeText),
        ...measured, called.length ? both(sum(called), timeText) : "", [...new Set(runs.map((run) => this.same(run)).filter((text) => text))].join("; ")];
    } catch (error) {
      return ["", "", "", ...(this.measure.checked ? [""] : []), "", error.message];
    }
  }

  /** What two compilations differ in. `runs`: of the graphs that were run so far whether results are the same. */
  compared(comparison, runs) {
    const both = ([a, b], text) => (a || b ? `${text(a)} → ${text(b)}` : "");
    const columns = {
      graph: (one) => one.title, steps: (one) => both(one.steps, String), bytes: (one) => both(one.bytes, bytesText), peak: (one) => both(one.peak, bytesText),
      predicted: (one) => both(one.predicted_us, timeText), "kernels measured": (one) => (one.measured_us[0] && one.measured_us[1] ? both(one.measured_us, timeText) : ""),
      "a call": (one, k) => (runs[k]?.us ? both([runs[k].base_us, runs[k].us], timeText) : ""), results: (one, k) => (k < runs.length ? this.same(runs[k]) : "running …"),
    };
    const filled = Object.entries(columns).filter(([, text]) => comparison.some((one, k) => text(one, k)));
    const told = { only_before: "steps that are gone", only_after: "new steps", parted: "no longer fused", joined: "fused now" };
    const steps = comparison.flatMap((one) => Object.entries(told).flatMap(([key, text]) => (one[key].length ? [`${one.title}, ${text}: ${one[key].join(", ")}`] : [])));
    const outcomes = comparison.flatMap((one) => one.directives.map((d) => `${d.text}: ${d.granted ? "granted" : "refused"}, ${d.reason}`));
    return h("div", {}, scrolling("Before and after", table(filled.map(([name]) => name), comparison.map((one, k) => filled.map(([, text]) => text(one, k))), [])),
      ...[...outcomes, ...(steps.length ? steps : ["Both have the same steps and the same fusions."])].map((text) => h("p", {}, text)));
  }

  same(run) {
    if (!run) return "";
    if (run.errors) return run.errors.map((one) => one.message).join("; ");
    const other = run.results.filter((one) => one.difference);
    return other.length ? other.map((one) => `${one.name}: ${one.difference}`).join("; ") : "the same";
  }

  back() {
    return h("p", {}, "All views show the new compilation. ", h("button", { type: "button", class: "small", click: () => {
      this.app.replace(this.first);
      this.said.replaceChildren();
    } }, "show the first one"));
  }

  // ---- edit

  edit(level) {
    this.app.open("run");
    this.fill(level);
    this.editor.focus();
  }

  fill(level) {
    const found = this.first.graphs[this.editing]?.levels.find((one) => one.name === level);
    this.editor.text = found ? this.first.texts[found.text] : "";
    this.level.value = level;
    this.result.replaceChildren();
    this.editor.mistake(null);
  }

  given() {
    return { graph: this.editing, level: this.level.value, text: this.editor.text };
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.asking(this.result, async () => {
      this.editor.mistake((await this.ask("check", this.given())).errors[0]);
    }, ""), CHECK_AFTER_MS);
  }

  async run() {
    await this.asking(this.result, async () => {
      const found = await this.ask("run", this.given());
      this.editor.mistake(found.errors?.[0]);
      if (found.errors) return;
      const times = found.us ? `${timeText(found.us)} a call, ${timeText(found.base_us)} as it was.` : "";
      const file = URL.createObjectURL(new Blob([found.text], { type: "text/plain" }));
      this.result.replaceChildren(
        h("ul", {}, ...found.results.map((one) => h("li", {}, `${one.name}: ${one.difference || "the same"}`))), h("p", {}, times),
        h("p", {}, h("a", { href: file, download: found.file }, found.file), ", to be run with ", h("span", { class: "code" }, found.command)));
    });
  }

  async lower() {
    await this.asking(this.result, async () => {
      const found = await this.ask("lower", { ...this.given(), measure: this.measure.checked });
      this.editor.mistake(null);
      const { graph, level, text } = this.given();
      this.app.replace(found.document);
      this.editing = graph;
      this.level.value = level;
      this.editor.text = text;
      this.result.replaceChildren(this.back());
    });
  }

  // ---- the server

  async asking(where, what, waiting = "Working …") {
    if (waiting) where.replaceChildren(h("p", {}, waiting));
    this.element.setAttribute("aria-busy", "true");
    try {
      await what();
      if (where.textContent === waiting) where.replaceChildren();
    } catch (error) {
      where.replaceChildren(h("p", { class: "failed" }, error.message));
    }
    this.element.removeAttribute("aria-busy");
  }

  async ask(name, given) {
    const answer = await fetch(`/api/${name}`, {
      method: "POST", headers: { "Content-Type": "application/json", "X-Stepwell-Token": this.app.server }, body: JSON.stringify(given),
    });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error);
    return found;
  }
}
