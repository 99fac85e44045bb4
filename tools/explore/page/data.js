// The document: how it is read, and what belongs together in it.

/** A table in a box of its own, which scrolls by the keyboard, too. */
function scrolling(label, ...children) {
  return h("div", { class: "table", tabindex: "0", role: "group", "aria-label": label }, ...children);
}

/** An element with attributes (functions are listeners) and children (texts stay texts). */
function h(tag, attributes = {}, ...children) {
  const made = tag === "svg" || h.svg.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}
h.svg = new Set(["g", "path", "rect", "circle", "line", "polyline", "text", "title"]);

async function readDocument(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

function bytesText(n) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (n < 1024) return `${Number(n.toPrecision(4))} ${unit}`;
    n /= 1024;
  }
  return `${Number(n.toPrecision(4))} GiB`;
}

function timeText(us) {
  if (us >= 1e6) return `${Number((us / 1e6).toPrecision(3))} s`;
  return us >= 1000 ? `${Number((us / 1000).toPrecision(3))} ms` : `${Number(us.toPrecision(3))} us`;
}

function countText(n) {
  for (const unit of ["", " k", " M"]) {
    if (n < 1000) return `${Number(n.toPrecision(3))}${unit}`;
    n /= 1000;
  }
  return `${Number(n.toPrecision(3))} G`;
}

const fileName = (path) => path.replace(/^.*\//, "");

/** One graph of a document, with what is asked of it often. */
class Graph {
  constructor(data, number) {
    this.data = data;
    this.raw = data.graphs[number];
    this.levels = new Map(this.raw.levels.map((level) => [level.name, level]));
    this.lineOps = new Map();
    this.origins = this.raw.origins;
    this.files = [...new Set(this.origins.map((one) => one.file).filter((file) => file !== null))];
    this.stepsAt = new Map();  // "level:operation" -> step
    for (const step of this.raw.kernels)
      for (const [level, op] of Object.entries(step.operations ?? {})) this.stepsAt.set(`${level}:${op}`, step);
  }

  text(place) {
    return this.data.texts[place];
  }

  /** The panes that there are: the program's files, then the levels. */
  panes() {
    const files = this.files.filter((file) => this.text(this.data.sources[file].text));
    return [...files.map((file) => ({ id: `file:${file}`, title: fileName(this.data.sources[file].file), file })),
      ...this.raw.levels.map((level) => ({ id: level.name, title: level.name, level }))];
  }

  /** For each line (from 1) the innermost operation that stands there, or undefined. */
  operationsByLine(name) {
    let found = this.lineOps.get(name);
    if (!found) {
      found = [];
      this.levels.get(name).operations.forEach((op, number) => {
        for (let line = op.line; line <= (op.end ?? op.line); line++) found[line] = number;
      });
      this.lineOps.set(name, found);
    }
    return found;
  }

  originsOfLine(pane, line) {
    if (pane.file !== undefined) return this.origins.flatMap((one, k) => (one.file === pane.file && one.line === line ? [k] : []));
    const number = this.operationsByLine(pane.id)[line];
    return number === undefined ? [] : pane.level.operations[number].at ?? [];
  }

  /** The lines of a pane that have one of some origins. */
  linesOf(pane, origins) {
    const found = new Set();
    for (const k of origins) {
      const one = this.origins[k];
      if (pane.file !== undefined) {
        if (one.file === pane.file && one.line) found.add(one.line);
      } else for (const op of one.operations[pane.id] ?? []) found.add(pane.level.operations[op].line);
    }
    return found;
  }

  /** The step that an operation is, or is part of. */
  stepOf(level, number) {
    for (let at = number; at !== undefined; at = this.levels.get(level).operations[at].in) {
      const step = this.stepsAt.get(`${level}:${at}`);
      if (step) return step;
      const symbol = this.levels.get(level).operations[at].symbol;
      const launched = symbol && this.raw.kernels.find((one) => one.kernel === symbol.replace(/\.launch$/, ""));
      if (launched) return launched;
    }
    return undefined;
  }

  place(origin) {
    const one = this.origins[origin];
    return one.file === null || !one.line ? "" : `${fileName(this.data.sources[one.file].file)}:${one.line}`;
  }
}
