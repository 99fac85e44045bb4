// The graph of nests: what was joined to one nest, what was refused, and what each of these saves or would save.

const MAX_NESTS = 300;
const NEST_PIXELS = 18;
/** Left sides of a nest's name and of what it computes (0: it is not said), the right side of what its join saves, where arcs begin, how
 *  far they reach at most, and the width of the whole. */
const NEST_COLUMNS = { name: 16, what: 195, saves: 408, arcs: 426, reach: 240, all: 690 };
const NARROW_COLUMNS = { name: 16, what: 0, saves: 262, arcs: 280, reach: 40, all: 370 };

/** Every nest is a line, nests that became one stand in a box, and an arc is a pair: full where it was joined, broken where it was refused.
 *  Beside a nest stand the bytes that joining it saves, beside a refusal those that it would save. `choose(pair)` is called for an arc that
 *  is clicked. */
function fusionPicture(plan, choose) {
  const columns = pictureWidth() < NEST_COLUMNS.all ? NARROW_COLUMNS : NEST_COLUMNS;
  const { parts, place, high } = nestBoxes(plan, columns), labels = [];  // [height, element]
  for (const pair of plan.pairs) for (const [from, to] of ends(pair, place)) parts.push(arc(pair, from, to, columns, labels, choose));
  parts.push(...labels.map(([, label]) => label));  // above every arc
  const below = labels.reduce((most, [y]) => Math.max(most, y + 8), high);
  [["joined", "arc"], ["refused", "arc refused"]].forEach(([text, name], k) => parts.push(
    h("line", { x1: 16 + 110 * k, y1: below + 14, x2: 40 + 110 * k, y2: below + 14, class: name }), words(46 + 110 * k, below + 18, text)));
  if (place.size < plan.loops.length) parts.push(words(16, below + 36, `the first ${place.size} of ${plan.loops.length} nests`));
  return [columns.all, below + 44, parts];
}

/** Boxes with the names of their nests, and label -> height of its line. */
function nestBoxes(plan, columns) {
  const parts = [], place = new Map(), saved = new Map(plan.pairs.filter((one) => one.fused).map((one) => [one.first, one.bytes]));
  const loops = new Map(plan.loops.map((one) => [one.label, one]));
  let y = 8;
  for (const group of [...plan.groups].sort((a, b) => a.number - b.number)) {
    const inside = new Set(group.inside), labels = [...loops.keys()].filter((label) => inside.has(label) || group.members.includes(label));
    if (place.size + labels.length > MAX_NESTS) break;
    parts.push(h("rect", { x: 6, y, width: columns.arcs - 12, height: NEST_PIXELS * (labels.length + 1) + 6, rx: 5, class: "outline k1" }),
      words(columns.name - 4, y + 15, cut(`${labels.length === 1 ? "a nest" : `${labels.length} nests`} over ${group.sizes}`, 40), "start", "soft"));
    labels.forEach((label, k) => {
      const at = y + NEST_PIXELS * (k + 1) + 15, one = loops.get(label);
      place.set(label, at - 4);
      parts.push(words(columns.name + (inside.has(label) ? 12 : 0), at, cut(label, 24)));
      if (columns.what) parts.push(words(columns.what, at, cut(one.what, 18), "start", "soft"));
      if (saved.has(label)) parts.push(words(columns.saves, at, `saves ${bytesText(saved.get(label))}`, "end"));
    });
    y += NEST_PIXELS * (labels.length + 1) + 16;
  }
  return { parts, place, high: y };
}

/** Heights between which the arcs of a pair go: a nest may be joined with several, and a name may be that of several nests. */
function ends(pair, place) {
  const known = (text) => text.split(/, |\+/).filter((label) => place.has(label)).map((label) => place.get(label));
  const [from] = known(pair.first), to = pair.second.split(", ").flatMap((label) => known(label).slice(0, 1));
  return from === undefined ? [] : to.map((one) => [from, one]);
}

function arc(pair, from, to, columns, labels, choose) {
  const x = columns.arcs, out = x + Math.min(columns.reach, 16 + Math.abs(to - from) / 2);
  const parts = [h("title", {}, `${pair.first} with ${pair.second}: ${pair.fused ? "joined" : "refused"}, ${pair.reason} (${bytesText(pair.bytes)})`),
    h("path", { d: `M${x},${from} C${out},${from} ${out},${to} ${x},${to}`, class: `arc${pair.fused ? "" : " refused"}` })];
  if (!pair.fused) {
    const y = free((from + to) / 2 + 4, labels);
    labels.push([y, words((x + 3 * out) / 4 + 6, y, bytesText(pair.bytes), "start", "halo")]);
  }
  return h("g", { class: "box", click: () => choose(pair) }, ...parts);
}

/** The first height from one on at which no label stands yet. */
function free(y, labels) {
  while (labels.some(([other]) => Math.abs(other - y) < 13)) y += 13;
  return y;
}
