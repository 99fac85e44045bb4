// The report: what explain tells, as a page to read and to print.

const SHOWN_LINES = 12;
/** What keeps a number and its unit together. */
const UNIT = /(\d) (?=(?:[KMG]i)?B\b|[kMG]\b|[um]?s\b|flop)/g;

class ReportView {
  constructor(app) {
    this.app = app;
    this.element = h("div", { class: "report" });
  }

  show(graph) {
    const data = graph.data;
    if (this.shown === data) return;
    this.shown = data;
    this.heads = [];
    const parts = data.report.flatMap((block) => this.block(data, block));
    const contents = this.heads.map((head) => h("li", { class: `level${head.tagName[1]}` },
      h("button", { type: "button", class: "link", click: () => head.scrollIntoView() }, head.textContent)));
    this.element.replaceChildren(h("nav", { "aria-label": "Contents" }, h("ul", {}, ...contents)), h("article", {}, ...parts));
  }

  block(data, block) {
    if (block.heading) {
      const head = h(`h${block.heading}`, {}, block.text);
      if (block.heading > 1) this.heads.push(head);
      return [head];
    }
    if (block.lines) return paragraphs(block.lines);
    if (block.picture) return [drawn(this.app, new Graph(data, block.graph), block.picture)];
    const rows = block.rows.map((row) => row.map((cell) => (/^#+$/.test(cell) ? h("div", { class: "bar", style: `width: ${6 * cell.length}px` }) : cell.replace(UNIT, "$1\u00a0"))));
    return [scrolling(block.headers.join(", "), table(block.headers, rows, block.numbers))];
  }
}

/** Prose: lines that are set in say what is done at the step above them; of many most are folded. */
function paragraphs(lines) {
  const parts = [];
  let inside = [];
  const close = () => {
    const shown = inside.length > SHOWN_LINES + 2 ? SHOWN_LINES : inside.length, rest = inside.slice(shown);
    parts.push(...inside.slice(0, shown), ...(rest.length ? [h("details", {}, h("summary", {}, `${rest.length} more`), ...rest)] : []));
    inside = [];
  };
  for (const line of lines) {
    if (line.startsWith(" ")) inside.push(h("p", { class: "detail" }, ...prose(line.trim())));
    else {
      close();
      parts.push(h("p", { class: /^\d\. /.test(line) ? "step" : "" }, ...prose(line)));
    }
  }
  close();
  return parts;
}

/** One of the pictures of a graph by its name. */
function drawn(app, graph, name) {
  const view = new TimeView(app);
  view.take(graph);
  const [label, make] = {
    nests: ["What runs, and what waits for what", () => nests(graph, (step) => view.go(step))],
    roofline: ["Roofline: speed over flops a byte", () => view.roofline()],
    memory: ["Bytes alive at each step", () => view.memory()],
  }[name];
  return picture(label, make());
}
