// The page: a head with the graph and the search, and a view at a time.

const MAX_FOUND = 200;

/** Keys that work everywhere but where one types: [keys, what they do, what they do in the program]. */
const KEYS = [
  ["/", "search all levels; Enter takes the first, arrows walk what was found", (app) => app.input.focus()],
  ["1 … 6", "the views, from Levels on", (app, key) => app.openNumber(Number(key) - 1)],
  ["g", "the next graph", (app) => app.show((app.number + 1) % app.data.graphs.length)],
  ["n", "the next pass", (app) => app.stepPass(1)],
  ["p", "the pass before", (app) => app.stepPass(-1)],
  ["Escape", "let go of what is chosen", (app) => app.letGo()],
  ["?", "these keys", (app) => app.keys.showModal()],
];
const PANE_KEYS = [
  ["arrows, Page Up, Page Down, Home, End", "walk in a pane"], ["Enter", "keep the line, and read what became of it"],
  ["left, right", "fold and unfold what is inside of an operation"], ["left, right on a tab", "the next view"],
];

class App {
  constructor(data) {
    this.data = data;
    this.server = document.querySelector('meta[name="stepwell-token"]').content || null;
    this.views = { levels: new LevelsView(this), passes: new PassesView(this), plan: new PlanView(this), time: new TimeView(this), report: new ReportView(this) };
    this.titles = { levels: "Levels", passes: "Passes", plan: "Why", time: "Time and memory", report: "Report", run: "Rerun and edit" };
    if (this.server) this.views.run = new RunView(this);
    this.tabs = h("div", { role: "tablist", "aria-label": "Views" }, ...Object.keys(this.views).map((name) => h("button", {
      type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}`, click: () => this.open(name), keydown: (event) => this.key(event, name),
    }, this.titles[name])));
    this.graphs = h("select", { "aria-label": "Graph", change: (event) => this.show(Number(event.target.value)) },
      ...data.graphs.map((graph, k) => h("option", { value: k }, graph.title)));
    this.input = h("input", { type: "search", placeholder: "search (press /)", "aria-label": "Search all levels", input: () => this.search(), keydown: (event) => this.searchKey(event) });
    this.found = h("ul", { class: "found", hidden: true, "aria-label": "Found", keydown: (event) => this.foundKey(event) });
    this.keys = this.keysDialog();
    this.main = h("main", {}, ...Object.entries(this.views).map(([name, view]) =>
      h("div", { id: `view-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}`, class: "view" }, view.element)));
    const head = h("header", {}, h("h1", {}, `stepwell: ${data.name}`), this.graphs, this.tabs,
      h("div", { class: "search" }, this.input, this.found),
      h("button", { type: "button", "aria-label": "Keys", title: "Keys", click: () => this.keys.showModal() }, "?"));
    document.getElementById("page").replaceChildren(head, this.main, this.keys);
    document.addEventListener("keydown", (event) => this.shortcut(event));
    window.addEventListener("beforeprint", () => this.graph && this.open("report"));
  }

  start() {
    if (!this.data.graphs.length) {
      const why = this.data.eager.map((part) => h("li", {}, `${part.what}: ${part.why}`));
      document.querySelector("header").replaceChildren(h("h1", {}, `stepwell: ${this.data.name}`));
      this.main.replaceChildren(h("div", { class: "empty" }, h("p", {}, "No graph was compiled."), h("ul", {}, ...why)));
      return;
    }
    this.open(document.querySelector('meta[name="stepwell-view"]').content);
    this.show(0);
  }

  /** Show another document, of the same program compiled in another way. */
  replace(data) {
    this.data = data;
    this.graphs.replaceChildren(...data.graphs.map((graph, k) => h("option", { value: k }, graph.title)));
    this.show(Math.min(this.number, data.graphs.length - 1));
  }

  show(number) {
    this.number = number;
    this.graph = new Graph(this.data, number);
    this.graphs.value = number;
    this.stale = new Set(Object.keys(this.views));
    this.refresh("levels");
    this.refresh(this.current);
  }

  /** A view draws a graph when it is looked at first. */
  refresh(name) {
    if (this.stale.delete(name)) this.views[name].show(this.graph);
  }

  open(name) {
    this.current = name;
    if (this.graph) this.refresh(name);
    for (const one of Object.keys(this.views)) {
      document.getElementById(`view-${one}`).hidden = one !== name;
      const tab = document.getElementById(`tab-${one}`);
      tab.setAttribute("aria-selected", String(one === name));
      tab.tabIndex = one === name ? 0 : -1;
    }
  }

  key(event, name) {
    const names = Object.keys(this.views), by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const to = names[(names.indexOf(name) + by + names.length) % names.length];
    this.open(to);
    document.getElementById(`tab-${to}`).focus();
  }

  shortcut(event) {
    if (!this.graph || this.keys.open || event.ctrlKey || event.altKey || event.metaKey) return;
    const typing = event.target.closest?.("input:not([type=checkbox]), textarea, select, .CodeMirror");
    if (typing && event.key !== "Escape") return;
    const name = /^[1-9]$/.test(event.key) ? KEYS[1][0] : event.key, known = KEYS.find(([key]) => key === name);
    if (!known) return;
    event.preventDefault();
    known[2](this, event.key);
  }

  keysDialog() {
    const rows = [...KEYS, ...PANE_KEYS].map(([key, what]) => [h("kbd", {}, key), what]);
    const close = h("button", { type: "button", click: () => dialog.close() }, "close");
    const dialog = h("dialog", { "aria-label": "Keys" }, h("h2", {}, "Keys"), table(["key", "does"], rows, []), h("p", {}, close));
    return dialog;
  }

  openNumber(number) {
    const name = Object.keys(this.views)[number];
    if (!name) return;
    this.open(name);
    document.getElementById(`tab-${name}`).focus();
  }

  stepPass(by) {
    this.open("passes");
    this.views.passes.choose(this.views.passes.next(by));
  }

  letGo() {
    if (!this.found.hidden) this.found.hidden = true;
    else this.views.levels.clear();
  }

  search() {
    const text = this.input.value.trim();
    const lines = text ? this.views.levels.search(text, MAX_FOUND) : [];
    this.found.hidden = !text;
    this.found.replaceChildren(...(lines.length ? lines : [[null, 0, "nothing"]]).map(([pane, line, shown]) => h("li", {}, pane
      ? h("button", { type: "button", click: () => this.jump(pane, line) }, h("b", {}, `${pane.title}:${line} `), cut(shown, 120))
      : shown)));
  }

  searchKey(event) {
    if (event.key === "ArrowDown") event.preventDefault();
    if (event.key === "Enter") this.found.querySelector("button")?.click();
    else if (event.key === "ArrowDown") this.found.querySelector("button")?.focus();
  }

  foundKey(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key], all = [...this.found.querySelectorAll("button")];
    if (!by) return;
    event.preventDefault();
    (all[all.indexOf(event.target) + by] ?? (by < 0 ? this.input : event.target)).focus();
  }

  jump(pane, line) {
    this.found.hidden = true;
    this.views.levels.go(pane.id, line);
  }
}

readDocument(document.getElementById("document").textContent.trim()).then((data) => {
  const app = new App(data);
  app.start();
  document.documentElement.dataset.ready = "yes";
});
