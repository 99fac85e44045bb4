// A text of which only the lines in sight are in the page.

const LINE_PIXELS = 18;
const BEYOND_LINES = 12;
/** Narrowest and widest that a letter may be. */
const LETTER_PIXELS = [6, 9];
const BEYOND_COLUMNS = 60;

const GENERIC_RULES = [
  ["#[^\\n]*|;[^\\n]*|//[^\\n]*", "t-comment-single"],
  ['"(?:[^"\\\\\\n]|\\\\.)*"', "t-literal-double"],
  ["%[\\w$.-]+", "t-name-variable"],
  ["@[\\w$.-]+", "t-name-function"],
  ["\\b(?:def|class|return|import|from|if|else|for|in|with|define|declare|entry|ret|br|call|load|store|phi|select)\\b", "t-keyword-keyword"],
  ["-?\\b(?:0x[0-9A-Fa-f]+|\\d+(?:\\.\\d+)?(?:e[-+]?\\d+)?)\\b", "t-literal-integer"],
  ["\\b(?:float|double|half|ptr|void|i\\d+|f\\d+)\\b", "t-keyword-type"],
];

/** Languages of machines: a "#" in them begins no comment. */
const MARKS_HASH = new Set(["asm", "ptx", "sass", "amdgcn"]);

const tokenizers = new Map();

/** [class or "", text] of each word of a line. */
function tokens(language, line) {
  let rules = tokenizers.get(language);
  if (!rules) {
    const table = language === "mlir" ? MLIR_RULES : GENERIC_RULES.slice(MARKS_HASH.has(language) ? 1 : 0);
    rules = { all: new RegExp(table.map(([pattern]) => `(${pattern})`).join("|"), "g"), classes: table.map(([, name]) => name) };
    tokenizers.set(language, rules);
  }
  const found = [];
  let last = 0;
  for (const match of line.matchAll(rules.all)) {
    if (!match[0]) continue;
    if (match.index > last) found.push(["", line.slice(last, match.index)]);
    found.push([rules.classes[match.slice(1).findIndex((group) => group !== undefined)], match[0]]);
    last = match.index + match[0].length;
  }
  if (last < line.length) found.push(["", line.slice(last)]);
  return found;
}

/** The words of a line with their colours, from one column to another; what stands outside stays one text. `mark(class, word)` may give
 *  a word a further class. */
function coloured(language, line, [from, to], mark = () => "") {
  const space = from < line.length ? line.lastIndexOf(" ", from) : -1;
  const first = Math.max(0, space), words = tokens(language, line.slice(first, to));
  const made = words.map(([name, text]) => (name ? h("span", { class: `${name} ${mark(name, text)}`.trim() }, text) : text));
  return [line.slice(0, first), ...made, line.slice(to)].filter((part) => part !== "");
}

/** A scrolled list of rows of equal height. `row(index)` makes the element of one. */
class Rows {
  constructor(label, row) {
    this.row = row;
    this.count = 0;
    this.inner = h("div", { class: "rows", role: "presentation" });
    this.element = h("div", { class: "scroll", tabindex: "0", role: "listbox", "aria-label": label, scroll: () => this.draw() }, this.inner);
    new ResizeObserver(() => this.draw(true)).observe(this.element);
  }

  resize(count, columns) {
    this.count = count;
    this.inner.style.height = `${count * LINE_PIXELS}px`;
    this.inner.style.width = `max(100%, ${columns + 8}ch)`;
    this.draw(true);
  }

  draw(always = false) {
    const first = Math.max(0, Math.floor(this.element.scrollTop / LINE_PIXELS) - BEYOND_LINES);
    const last = Math.min(this.count, Math.ceil((this.element.scrollTop + this.element.clientHeight) / LINE_PIXELS) + BEYOND_LINES);
    const columns = this.columnsInSight(this.element.clientWidth);
    const drawn = [first, last, ...columns].join(" ");
    if (!always && drawn === this.drawn) return;
    [this.drawn, this.columns] = [drawn, columns];
    const made = [];
    for (let k = first; k < last; k++) {
      const row = this.row(k);
      row.style.top = `${k * LINE_PIXELS}px`;
      made.push(row);
    }
    this.inner.replaceChildren(...made);
  }

  /** First and last column of which something is seen in a width, and some beyond, in steps: a short way needs no new drawing. */
  columnsInSight(width) {
    const [narrow, wide] = LETTER_PIXELS, step = (column) => Math.round(column / BEYOND_COLUMNS) * BEYOND_COLUMNS;
    return [Math.max(0, step(this.element.scrollLeft / wide) - BEYOND_COLUMNS), step((this.element.scrollLeft + width) / narrow) + 2 * BEYOND_COLUMNS];
  }

  show(index) {
    const top = index * LINE_PIXELS, height = this.element.clientHeight;
    if (top < this.element.scrollTop + LINE_PIXELS || top > this.element.scrollTop + height - 2 * LINE_PIXELS)
      this.element.scrollTop = Math.max(0, top - height / 3);
    this.draw(true);
  }
}

let viewers = 0;
const PRICE_COLUMNS = 5;

const isValue = (name) => /^t-name-variable\b/.test(name);

/** A value's name: of `%x:2` and `%x#1` `%x`. */
const valueName = (word) => word.replace(/[#:]\d+$/, "");

/** Letters of the longest of some lines, 20 at least. */
const longest = (lines) => lines.reduce((most, line) => Math.max(most, line.length), 20);

/** A text with numbered lines that can be folded, walked by keys, marked, hovered and chosen.
 *  `on.hover(line or 0, value or "")`, `on.choose(line)`; `folds`: first line -> last line of what can be folded; `prices`: line -> its
 *  share of the time, and what to say of it. */
class Viewer {
  constructor(label, text, language, folds, prices, on) {
    this.lines = text.replace(/\n$/, "").split("\n");
    this.prices = prices;
    this.value = "";
    this.language = language;
    this.folds = folds;
    this.folded = new Set();
    this.marked = new Set();
    this.on = on;
    this.current = 0;
    this.chosen = 0;
    this.name = `viewer${viewers++}`;
    this.rows = new Rows(label, (k) => this.line(this.shown[k]));
    const box = this.rows.element;
    box.addEventListener("mousemove", (event) => this.hover(this.lineAt(event), this.valueAt(event)));
    box.addEventListener("mouseleave", () => this.hover(0, ""));
    box.addEventListener("click", (event) => this.click(event));
    box.addEventListener("keydown", (event) => this.key(event));
    this.element = box;
    this.refold();
  }

  refold() {
    this.shown = [];
    for (let line = 1; line <= this.lines.length; line++) {
      this.shown.push(line);
      if (this.folded.has(line)) line = this.folds.get(line) - 1;
    }
    this.rows.resize(this.shown.length, longest(this.lines) + (this.prices.size ? PRICE_COLUMNS : 0));
  }

  line(number) {
    const fold = this.folds.has(number) ? (this.folded.has(number) ? "▸" : "▾") : "";
    const names = ["line"];
    if (this.marked.has(number)) names.push("marked");
    if (number === this.chosen) names.push("chosen");
    if (number === this.current) names.push("current");
    const text = this.lines[number - 1], words = coloured(this.language, text, this.rows.columns, (name, word) => (isValue(name) && valueName(word) === this.value ? "value" : ""));
    return h("div", {
      class: names.join(" "), id: `${this.name}-${number}`, role: "option", "aria-selected": String(number === this.chosen),
      "aria-label": text.trim() ? null : "empty line", "aria-posinset": number, "aria-setsize": this.lines.length, "data-line": number,
    }, h("span", { class: "fold", "aria-hidden": "true" }, fold), h("span", { class: "number", "aria-hidden": "true" }, String(number)), this.price(number), ...words);
  }

  /** The column that says what share of the time a line costs, where any line of the text does. */
  price(number) {
    if (!this.prices.size) return null;
    const { share, text } = this.prices.get(number) ?? {};
    if (share === undefined) return h("span", { class: "price", "aria-hidden": "true" });
    const percent = Math.round(100 * share);
    return h("span", { class: "price", style: `--share: ${percent}%`, title: text, "aria-hidden": "true" }, percent ? `${percent}%` : "<1%");
  }

  lineAt(event) {
    return Number(event.target.closest?.("[data-line]")?.dataset.line ?? 0);
  }

  /** The value that is pointed at, of those that the text names by a sign. */
  valueAt(event) {
    return isValue(event.target.className ?? "") ? valueName(event.target.textContent) : "";
  }

  hover(line, value) {
    if (line === this.hovered && value === this.hoveredValue) return;
    [this.hovered, this.hoveredValue] = [line, value];
    this.on.hover(line, value);
  }

  click(event) {
    const line = this.lineAt(event);
    if (!line) return;
    if (event.target.classList.contains("fold") && this.folds.has(line)) this.toggle(line);
    else this.choose(line);
  }

  toggle(line) {
    this.folded.has(line) ? this.folded.delete(line) : this.folded.add(line);
    this.refold();
  }

  choose(line) {
    this.current = this.chosen = line;
    this.on.choose(line);
    this.rows.draw(true);
  }

  key(event) {
    const at = Math.max(0, this.shown.indexOf(this.current));
    const page = Math.max(1, Math.floor(this.element.clientHeight / LINE_PIXELS) - 1);
    const to = { ArrowDown: this.current ? at + 1 : 0, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: this.shown.length - 1 }[event.key];
    if (to !== undefined) {
      this.current = this.shown[Math.min(this.shown.length - 1, Math.max(0, to))];
      this.rows.show(this.shown.indexOf(this.current));
      this.element.setAttribute("aria-activedescendant", `${this.name}-${this.current}`);
      this.on.hover(this.current, "");
    } else if (event.key === "Enter" || event.key === " ") this.choose(this.current || 1);
    else if (event.key === "ArrowLeft" && this.folds.has(this.current) && !this.folded.has(this.current)) this.toggle(this.current);
    else if (event.key === "ArrowRight" && this.folded.has(this.current)) this.toggle(this.current);
    else return;
    event.preventDefault();
  }

  /** Mark lines, and in all lines a value by its name. */
  mark(lines, value = "") {
    [this.marked, this.value] = [lines, value];
    this.rows.draw(true);
  }

  /** Bring a line into sight, unfolded. */
  reveal(line) {
    const around = [...this.folded].filter((first) => first < line && line < this.folds.get(first));
    for (const first of around) this.folded.delete(first);
    if (around.length) this.refold();
    this.rows.show(this.shown.indexOf(line));
  }
}
