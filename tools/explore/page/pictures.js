// Time and memory: the roofline, the slowest kernels, the order of launches, and what is alive.

const KIND_CLASS = { nest: "k1", contraction: "k2", call: "k3", arena: "k1", pooled: "k2", output: "k4", "in output": "k5", extern: "k3" };

/** What a kernel takes of a multiprocessor: its title, and how it is written. */
const RESOURCES = {
  registers: ["registers", String], spills: ["spills", bytesText], shared: ["shared memory", bytesText], warps: ["warps", String],
  programs: ["programs at once", String], occupancy: ["occupancy", (share) => `${Math.round(100 * share)} %`], limit: ["limited by", String],
};

/** The columns of the table of steps that hold words. */
const WORDS = new Set(["what", "kernel", "spent on", RESOURCES.limit[0]]);

function resourcesText(resources) {
  return Object.entries(RESOURCES).flatMap(([name, [title, text]]) => (resources[name] === undefined ? [] : [`${title} ${text(resources[name])}`])).join(", ");
}

const MAX_PIXELS = 860, MIN_PIXELS = 340;

/** How wide a picture is: as wide as the page, within bounds. */
function pictureWidth() {
  return Math.max(MIN_PIXELS, Math.min(MAX_PIXELS, window.innerWidth - 24));
}

/** Squares of colours with their names, one beside the other from x on. */
function legend(names, x, y, wide) {
  const step = Math.min(110, (wide - x - 8) / names.length);
  return names.flatMap((name, k) => [h("rect", { x: x + step * k, y: y - 9, width: 10, height: 10, class: KIND_CLASS[name] ?? "k6" }), words(x + 14 + step * k, y, name)]);
}

class TimeView {
  constructor(app) {
    this.app = app;
    this.element = h("div", { class: "time" });
  }

  take(graph) {
    this.graph = graph;
    this.steps = graph.raw.kernels;
  }

  show(graph) {
    this.take(graph);
    const total = this.steps.reduce((sum, step) => sum + step.predicted_us, 0);
    const measured = this.steps.reduce((sum, step) => sum + step.measured_us, 0);
    this.element.replaceChildren(...[
      h("p", {}, `${this.steps.length} steps, predicted ${timeText(total)}` + (measured ? `, measured ${timeText(measured)} one by one` : "") + ` on ${graph.data.machine.name}.`),
      ...graph.data.advice.map((text) => h("p", { class: "advice" }, ...prose(text))),
      h("h2", {}, "The slowest ten"), picture("The slowest ten steps", this.slowest()),
      h("h2", {}, "In the order of the program"), picture("Predicted time of the steps one after the other", this.timeline(total)),
      h("h2", {}, "Roofline"), picture("Roofline: speed over flops a byte", this.roofline()),
      h("h2", {}, "Memory over time"), picture("Bytes alive at each step", this.memory()), this.peak(),
      h("h2", {}, "All steps"), scrolling("All steps", this.table()),
    ]);
  }

  go(step) {
    const op = step.operations?.mem;
    if (op !== undefined) this.app.views.levels.go("mem", this.graph.levels.get("mem").operations[op].line);
  }

  slowest() {
    const steps = [...this.steps].sort((a, b) => b.predicted_us - a.predicted_us).slice(0, 10);
    const most = Math.max(...steps.flatMap((step) => [step.predicted_us, step.measured_us]), 1e-9), parts = [];
    const all = pictureWidth(), left = Math.min(208, Math.round(all * 0.36)), measured = steps.some((step) => step.measured_us);
    const longest = Math.min(430, all - left - (measured ? 170 : 80));
    steps.forEach((step, k) => {
      const y = 8 + 34 * k, wide = (us) => Math.max(1, (longest * us) / most);
      parts.push(words(left - 8, y + 13, cut(`${step.number} ${step.label}`, Math.floor((left - 8) / 7.3)), "end"),
        h("rect", { x: left, y, width: wide(step.predicted_us), height: 11, class: KIND_CLASS[step.kind] }, h("title", {}, `predicted ${timeText(step.predicted_us)}`)));
      if (step.measured_us) parts.push(h("rect", { x: left, y: y + 13, width: wide(step.measured_us), height: 9, class: "k6" }, h("title", {}, `measured ${timeText(step.measured_us)}`)));
      parts.push(words(left + 6 + Math.max(wide(step.predicted_us), step.measured_us ? wide(step.measured_us) : 0), y + 12,
        timeText(step.predicted_us) + (step.measured_us ? `, measured ${timeText(step.measured_us)}` : "")));
    });
    parts.push(...legend(["nest", "contraction", "call", ...(measured ? ["measured"] : [])], all < MAX_PIXELS ? 8 : left, 21 + 34 * steps.length, all));
    return [all, 32 + 34 * steps.length, parts];
  }

  timeline(total) {
    let at = 0;
    const all = pictureWidth(), scale = all - 20;
    const parts = this.steps.flatMap((step) => {
      const x = 10 + (scale * at) / (total || 1), wide = (scale * step.predicted_us) / (total || 1), letters = Math.floor(wide / 7.5) - 1;
      at += step.predicted_us;
      return [h("rect", { x: x.toFixed(2), y: 22, width: Math.max(0.5, wide - 0.5).toFixed(2), height: 26, class: KIND_CLASS[step.kind] },
        h("title", {}, `step ${step.number} ${step.label}: ${timeText(step.predicted_us)}`)),
      ...(letters > 3 ? [words((x + 2).toFixed(2), 16, cut(`${step.number} ${step.label}`, letters))] : [])];
    });
    return [all, 70, [...parts, words(10, 64, "0"), words(all - 10, 64, timeText(total), "end")]];
  }

  roofline() {
    const machine = this.graph.data.machine, low = -2, high = 4, top = Math.ceil(Math.log10(Math.max(machine.gflops, 1)) + 0.2), bottom = top - 5;
    const all = pictureWidth(), right = all - 20;
    const x = (intensity) => 60 + (right - 60) * Math.min(1, Math.max(0, (Math.log10(Math.max(intensity, 1e-9)) - low) / (high - low)));
    const y = (speed) => 10 + 240 * (1 - Math.min(1, Math.max(0, (Math.log10(Math.max(speed, 1e-9)) - bottom) / (top - bottom))));
    const parts = [];
    for (let k = low; k <= high; k++) parts.push(h("line", { x1: x(10 ** k), y1: 10, x2: x(10 ** k), y2: 250, class: "grid" }), words(x(10 ** k), 266, String(Number((10 ** k).toPrecision(3))), "middle"));
    for (let k = bottom; k <= top; k++) parts.push(h("line", { x1: 60, y1: y(10 ** k), x2: right, y2: y(10 ** k), class: "grid" }), words(54, y(10 ** k) + 4, countText(10 ** k), "end"));
    machine.levels.forEach((level, k) => {
      const points = [10 ** low, machine.gflops / level.gbs, 10 ** high].map((i) => `${x(i).toFixed(1)},${y(Math.min(machine.gflops, i * level.gbs)).toFixed(1)}`);
      parts.push(h("polyline", { points: points.join(" "), class: `roof r${k % 4}` }),
        h("line", { x1: right - 180, y1: 186 + 18 * k, x2: right - 156, y2: 186 + 18 * k, class: `roof r${k % 4}` }), words(right - 150, 190 + 18 * k, `${level.name} ${Number(level.gbs.toPrecision(3))} GB/s`));
    });
    for (const step of this.steps.filter((one) => one.flops > 0 && one.bytes > 0)) {
      const intensity = step.flops / step.bytes;
      for (const [us, name] of [[step.alone_us || step.predicted_us, "predicted"], [step.measured_us, "measured"]])
        if (us) parts.push(h("circle", { cx: x(intensity).toFixed(1), cy: y(step.flops / us / 1e3).toFixed(1), r: name === "predicted" ? 5 : 4, class: name === "predicted" ? KIND_CLASS[step.kind] : "k6" },
          h("title", {}, `step ${step.number} ${step.label}: ${intensity.toFixed(2)} flop/B, ${countText(step.flops)} flops, ${name} ${timeText(us)}`)));
    }
    parts.push(words(all < MAX_PIXELS ? all / 2 : 450, 284, "flops for each byte; upwards Gflop/s of a step by itself", "middle"));
    return [all, 292, parts];
  }

  memory() {
    const memory = this.graph.raw.memory, count = Math.max(1, this.steps.length), most = Math.max(...memory.alive, 1), all = pictureWidth(), bar = (all - 90) / count, parts = [];
    for (let k = 0; k <= 4; k++) parts.push(h("line", { x1: 80, y1: 210 - 50 * k, x2: all - 10, y2: 210 - 50 * k, class: "grid" }), words(74, 214 - 50 * k, bytesText((most * k) / 4), "end"));
    for (let step = 0; step < this.steps.length; step++) {
      const alive = memory.buffers.filter((one) => one.first <= step && step <= one.last).sort((a, b) => a.bytes - b.bytes);
      const small = alive.filter((one) => one.bytes * 40 < most), large = alive.filter((one) => one.bytes * 40 >= most);
      const shown = small.length ? [{ name: `${small.length} small buffers`, kind: small[0].kind, bytes: small.reduce((sum, one) => sum + one.bytes, 0) }, ...large] : large;
      let y = 210;
      for (const one of shown) {
        const high = (200 * one.bytes) / most;
        y -= high;
        parts.push(h("rect", { x: (80 + step * bar).toFixed(1), y: y.toFixed(1), width: Math.max(0.5, bar - 1).toFixed(1), height: high.toFixed(1), class: `${KIND_CLASS[one.kind]} part` },
          h("title", {}, `step ${step} ${this.steps[step].label}: ${one.name} (${one.kind}), ${bytesText(one.bytes)}`)));
      }
    }
    const every = Math.max(1, Math.ceil((count * 40) / (all - 90)));
    for (let k = 0; k < count; k += every) parts.push(words(80 + (k + 0.5) * bar, 226, String(k), "middle"));
    parts.push(...legend(["arena", "pooled", "output", "in output", "extern"], all < MAX_PIXELS ? 8 : 80, 247, all));
    return [all, 256, parts];
  }

  peak() {
    const memory = this.graph.raw.memory;
    if (!this.steps.length) return h("p", {}, "Nothing runs.");
    const sizes = new Map(memory.buffers.map((one) => [one.name, one.bytes]));
    const owners = memory.peak.owners.slice(0, 8).map((name) => `${name} ${bytesText(sizes.get(name) ?? 0)}`);
    return h("p", {}, `Peak ${bytesText(memory.peak.bytes)} at step ${memory.peak.step} (${this.steps[memory.peak.step].label}): ${owners.join(", ")}.`);
  }

  table() {
    const columns = Object.entries(RESOURCES).filter(([name]) => this.steps.some((step) => step.resources?.[name] !== undefined));
    const heads = ["step", "what", "kernel", "bytes", "flops", "spent on", "predicted", "measured", ...columns.map(([, [title]]) => title)];
    return table(heads, this.steps.map((step) => [String(step.number),
      h("button", { type: "button", class: "link", click: () => this.go(step) }, step.label), step.kernel ?? step.kind, bytesText(step.bytes), countText(step.flops), step.bound,
      timeText(step.predicted_us), step.measured_us ? timeText(step.measured_us) : "",
      ...columns.map(([name, [, text]]) => (step.resources?.[name] === undefined ? "" : text(step.resources[name])))]), heads.flatMap((head, k) => (WORDS.has(head) ? [] : [k])));
  }
}

const MAX_BOXES = 60;
const BOX = { wide: 230, high: 58, gap: 34, between: 24 };

/** A box for each step, in rows of steps that do not wait for each other, and a line for each result that another step uses. */
function nests(graph, choose) {
  const steps = graph.raw.kernels.slice(0, MAX_BOXES), row = [], columns = [], place = [], parts = [];
  for (const step of steps) {
    const k = (row[step.number] = 1 + Math.max(-1, ...step.after.filter((one) => one in row).map((one) => row[one])));
    columns[k] = (columns[k] ?? 0) + 1;
    place[step.number] = [10 + (columns[k] - 1) * (BOX.wide + BOX.between), 10 + k * (BOX.high + BOX.gap)];
  }
  for (const step of steps) for (const k of step.after) if (place[k]) parts.push(h("path", { d: edge(place[k], place[step.number]), class: "edge" }));
  for (const step of steps) {
    const [x, y] = place[step.number];
    const tip = `${step.operators.join(", ")}\nreads ${step.reads.map((one) => one.name).join(", ")}\nwrites ${step.writes.map((one) => one.name).join(", ")}`;
    parts.push(h("g", { class: "box", click: () => choose(step) }, h("title", {}, tip),
      h("rect", { x, y, width: BOX.wide, height: BOX.high, rx: 5, class: `outline ${KIND_CLASS[step.kind]}` }),
      words(x + 8, y + 18, cut(`${step.number}: ${step.label}`, 30)), words(x + 8, y + 34, cut(step.operators.join(", "), 30)),
      words(x + 8, y + 50, cut(`${bytesText(step.bytes)}, ${timeText(step.predicted_us)}, ${step.bound}`, 34))));
  }
  const high = 20 + Math.max(1, columns.length) * (BOX.high + BOX.gap), wide = 70 + Math.max(2, ...columns) * (BOX.wide + BOX.between);
  if (steps.length < graph.raw.kernels.length) parts.push(words(10, high - 4, `the first ${steps.length} of ${graph.raw.kernels.length} steps`));
  return [wide, high, parts];
}

/** From below a box to above another; past boxes of its own column on their right. */
function edge([x1, y1], [x2, y2]) {
  const from = y1 + BOX.high, to = y2 - 2, middle = (from + to) / 2, half = BOX.wide / 2;
  if (x1 !== x2 || to - from < BOX.high) return `M${x1 + half},${from} C${x1 + half},${middle} ${x2 + half},${middle} ${x2 + half},${to}`;
  const side = x1 + BOX.wide, out = side + BOX.between + Math.min(30, (y2 - y1) / 20);
  return `M${side},${y1 + BOX.high / 2} C${out},${y1 + BOX.high / 2} ${out},${y2 + BOX.high / 2} ${side},${y2 + BOX.high / 2}`;
}

function words(x, y, text, anchor = "start", name = null) {
  return h("text", { x, y, "text-anchor": anchor, class: name }, text);
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function picture(label, [width, height, parts]) {
  return h("div", { class: "picture", tabindex: "0", role: "group", "aria-label": label }, h("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, ...parts));
}
