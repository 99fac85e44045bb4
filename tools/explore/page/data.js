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

/** A text in which words between backquotes are code. */
function prose(text) {
  return text.split("`").map((part, k) => (k % 2 ? h("code", {}, part) : part));
}

const fileName = (path) => path.replace(/^.*\//, "");

/** One graph of a document, with what is asked of it often. */
class Graph {
  constructor(data, number) {
    this.data = data;
    this.raw = data.graphs[number];
    this.levels = new Map(this.raw.levels.map((level) => [level.name, level]));
    this.lineOps = new Map();
    this.operands = new Map();
    this.measured = this.raw.kernels.length > 0 && this.raw.kernels.every((step) => step.measured_us);
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

  /** Operations of a level whose results an operation uses, in the order of the text. */
  operandsOf(level, number) {
    let found = this.operands.get(level);
    if (!found) {
      found = [];
      this.levels.get(level).operations.forEach((op, k) => { for (const user of op.users ?? []) (found[user] ??= []).push(k); });
      this.operands.set(level, found);
    }
    return found[number] ?? [];
  }

  /** The operation that a value at a line of a level comes from; undefined where it is an argument. */
  definition(level, line, name) {
    const ops = this.levels.get(level).operations, here = this.operationsByLine(level)[line];
    if (here === undefined) return undefined;
    return [here, ...this.operandsOf(level, here)].find((k) => ops[k].results?.includes(name));
  }

  /** The lines of a level at which the result of an operation stands. */
  linesOfValue(level, number) {
    const ops = this.levels.get(level).operations;
    return new Set([number, ...(ops[number].users ?? [])].map((k) => ops[k].line));
  }

  /** What a step costs in microseconds: as it was measured, if all were. */
  cost(step) {
    return this.measured ? step.measured_us : step.predicted_us;
  }

  /** Line of a pane -> the share of the graph's time of the steps that it became, and what to say of it. A step of several lines of a
   *  program counts for each of them in equal parts. */
  prices(pane) {
    const costs = new Map(), steps = this.raw.kernels, total = steps.reduce((sum, step) => sum + this.cost(step), 0);
    for (const step of steps) {
      const lines = this.linesOfStep(pane, step);
      for (const line of lines) costs.set(line, (costs.get(line) ?? 0) + this.cost(step) / lines.length);
    }
    const how = this.measured ? "measured" : "predicted";
    return new Map([...costs].map(([line, us]) => [line, { share: us / (total || 1), text: `${timeText(us)} of ${timeText(total)} (${how})` }]));
  }

  linesOfStep(pane, step) {
    if (pane.file === undefined) {
      const op = step.operations?.[pane.id];
      return op === undefined ? [] : [pane.level.operations[op].line];
    }
    const file = this.data.sources[pane.file].file;
    return [...new Set(step.places.filter((place) => place.file === file && place.line).map((place) => place.line))];
  }

  place(origin) {
    const one = this.origins[origin];
    return one.file === null || !one.line ? "" : `${fileName(this.data.sources[one.file].file)}:${one.line}`;
  }
}
