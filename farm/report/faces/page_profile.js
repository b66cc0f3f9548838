// ---- the picture of a case of all inputs: the largest error of each share of them, one line per backend ----------
const HIGH = 100, STEPS = 25, ULP = 3; // the height of a line, steps of it, and the step that one ulp is
function svgOf(tag, attributes, ...children) {
  const element = document.createElementNS($("pen").namespaceURI, tag);
  for (const [name, what] of Object.entries(attributes)) element.setAttribute(name, what);
  element.append(...children);
  return element;
}
function onSame(row) { // this row first, then those of the other backends on the same inputs
  const found = [row], n = value("case", row);
  for (let b = 0; b < B; b++) {
    const [from, to] = squares.get(place.label[row] * B + b) || [0, 0];
    for (let k = from; k < to; k++) if (k !== row && value("case", k) === n && value("profile", k)) found.push(k);
  }
  return found;
}
function profile(row) {
  if (!value("profile", row)) return [];
  const at_letter = (letter) => HIGH - (letter.charCodeAt(0) - 97) * HIGH / STEPS, one = HIGH - ULP * HIGH / STEPS;
  const rows = onSame(row), wide = 600 / value("profile", row).length;
  const picture = svgOf("svg", { class: "curve profile", viewBox: `0 -4 640 ${HIGH + 24}`, role: "img", "aria-label": "error of all inputs" },
    svgOf("line", { class: "bound", x1: 0, x2: 600, y1: one, y2: one }), svgOf("text", { x: 604, y: one + 4 }, "1 ulp"),
    svgOf("text", { x: 0, y: HIGH + 18 }, "lowest input"), svgOf("text", { x: 600, y: HIGH + 18, "text-anchor": "end" }, "highest"),
    ...[...rows].reverse().map((k, n) => svgOf("polyline", { class: `p${(rows.length - 1 - n) % 6}`,
      points: [...value("profile", k)].map((letter, at) => `${(at * wide).toFixed(1)},${at_letter(letter).toFixed(1)}`).join(" ") },
    svgOf("title", {}, data.backends[place.backend[k]].name))));
  const words = "Largest error of each 128th of the finite inputs, in ascending order; each step up doubles it, the top is a misplaced NaN or Inf.";
  return [make("p", { class: "note" }, words), picture,
    make("p", { class: "keys" }, ...rows.map((k, n) => make("span", { class: `p${n % 6}` }, `━ ${data.backends[place.backend[k]].name}  `)))];
}
