// Why: nests, what was joined, what was refused, and the price of that.

class PlanView {
  constructor(app) {
    this.app = app;
    this.filter = "";
    this.onlyRefused = false;
    this.element = h("div", { class: "plan" });
  }

  show(graph) {
    this.graph = graph;
    const plan = graph.raw.plan;
    const wanted = h("input", { type: "search", placeholder: "a name", "aria-label": "Show what has a name", input: (event) => { this.filter = event.target.value; this.fill(); } });
    const refused = h("input", { type: "checkbox", id: "only-refused", change: (event) => { this.onlyRefused = event.target.checked; this.fill(); } });
    this.pairs = scrolling("Joins and refusals");
    this.nests = scrolling("Nests");
    const gone = plan.gone.length ? h("p", {}, `Folded, merged or unused: ${plan.gone.join(", ")}.`) : null;
    const directives = plan.directives.map((one) => h("li", {}, `${one.text}: ${one.granted ? "granted" : "refused"}, ${one.reason}`));
    this.element.replaceChildren(...[
      h("h2", {}, "Nests, what was joined and what was refused"),
      plan.loops.length ? picture("Nests, joins and refusals", fusionPicture(plan, (pair) => this.take(pair))) : h("p", {}, "There are no nests."),
      h("h2", {}, "Joins and refusals, the largest price first"),
      h("p", {}, wanted, " ", refused, h("label", { for: "only-refused" }, " only what is not fused")), this.pairs,
      h("h2", {}, "Nests before fusion"), this.nests, gone,
      h("h2", {}, "What runs"), drawn(this.app, graph, "nests"),
      directives.length > 0 && h("h2", {}, "Directives"), directives.length > 0 && h("ul", {}, ...directives),
    ].filter(Boolean));
    this.wanted = wanted;
    this.fill();
  }

  /** Show what has a name. */
  find(name) {
    this.app.open("plan");
    this.wanted.value = this.filter = name;
    this.fill();
    this.wanted.focus();
  }

  fill() {
    const plan = this.graph.raw.plan, has = (...texts) => texts.some((text) => text.toLowerCase().includes(this.filter.toLowerCase()));
    const pairs = plan.pairs.filter((one) => has(one.first, one.second, one.reason) && !(this.onlyRefused && one.fused)).sort((a, b) => b.bytes - a.bytes);
    this.pairs.replaceChildren(table(["first", "second", "result", "why", "price", ...(this.app.server ? ["overrule"] : [])], pairs.map((one) => [
      this.name(one.first), this.name(one.second), one.fused ? "fused" : "not fused", one.reason, bytesText(one.bytes), ...(this.app.server ? [this.overrule(one)] : [])]), [4]));
    const loops = plan.loops.filter((one) => has(one.label, one.what));
    const heads = ["nest", "loops", "what", "line", "became", ...(this.app.server ? ["overrule"] : [])];
    this.nests.replaceChildren(table(heads, loops.map((one) => [
      this.name(one.label), one.sizes, one.what, one.place.line ? `${fileName(one.place.file)}:${one.place.line}` : "", this.fate(one),
      ...(this.app.server ? [this.arrange(one)] : [])]), []));
  }

  /** Names of nests, each a button that leads to the level loop. */
  name(text) {
    return text.split(", ").map((label) => {
      const name = label.replace(/\.\d+$/, "");
      const k = this.graph.origins.findIndex((one) => one.name === name && one.operations.loop);
      if (k < 0) return h("span", {}, `${label} `);
      const line = this.graph.levels.get("loop").operations[this.graph.origins[k].operations.loop[0]].line;
      return h("button", { type: "button", class: "link", click: () => this.app.views.levels.go("loop", line) }, label);
    });
  }

  fate(one) {
    if (one.readers.length) return `computed in ${one.readers.join(", ")}`;
    const group = this.graph.raw.plan.groups.find((g) => g.number === one.group);
    const members = group && group.members.length > 1 ? `shares loops with ${group.members.filter((m) => m !== one.label).join(", ")}` : "a nest of its own";
    return one.stored_because ? `${members}; stored: ${one.stored_because}` : members;
  }

  overrule(one) {
    return h("button", { type: "button", class: "small", click: () => this.take(one) }, one.fused ? "keep apart" : "fuse");
  }

  /** Overrule a pair where a server compiles again; else show its line in the list. */
  take(one) {
    if (!this.app.server) this.find(one.first);
    else if (one.fused) this.app.views.run.add("no_fuse", this.alone(one.first));
    else this.app.views.run.add("fuse", `${one.first}+${one.second.split(", ")[0]}`);
  }

  /** Begin to say how a nest is tiled, or in which order its loops run. */
  arrange(one) {
    return [["tile", "tile"], ["loop_order", "order"]].map(([option, text]) =>
      h("button", { type: "button", class: "small", click: () => this.app.views.run.begin(option, `${one.operator}=`) }, text));
  }

  /** A nest as directives name it alone: an operator's name without a number means all of its nests, which stay together then. */
  alone(label) {
    return this.graph.raw.plan.loops.some((one) => one.label === `${label}.2`) ? `${label}.1` : label;
  }
}

/** A table; `numbers` are the columns that are set flush right. On a narrow page a row of it stands below another as a card: roles are
 *  said, since a browser takes a table that is laid out as blocks for none. */
function table(heads, rows, numbers) {
  const cell = (content, k) => h("td", { role: "cell", "data-head": heads[k], class: numbers.includes(k) ? "n" : null }, ...[content].flat());
  return h("table", { role: "table", class: "cards" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...heads.map((head) => h("th", { scope: "col", role: "columnheader" }, head)))),
    h("tbody", { role: "rowgroup" }, ...rows.map((row) => h("tr", { role: "row" }, ...row.map(cell)))));
}
