// ---- what changed from one backend to another: `farm.report.diff` says it, here it is filtered and shown ---------
function change(n, x, y) {
  const many = unitsFrom[n + 1] - unitsFrom[n];
  return data.changes[Number(sides.change[n][x.turn * many + y.turn])];
}
// As the lines of a diff are sorted: what is not measured, or infinite, is the furthest off.
const size = (units) => units === null || units === "inf" ? Infinity : units;
const further = (p, q) => rank[p.y.status] - rank[q.y.status] || size(q.y.units) - size(p.y.units) || p.n - q.n;
function drawChanges() {
  const { a, b } = state, text = state.q.toLowerCase(), box = $("changes");
  box.replaceChildren();
  if (a < 0 || b < 0 || a === b) { $("changed").textContent = ""; return; }
  const cellsOf = new Map(), samples = {}, severity = Object.fromEntries(data.changes.map((name, n) => [name, n]));
  let compared = 0, same = 0, told = 0, onlyA = 0, onlyB = 0;
  for (let n = 0; n < data.sides.length; n++) {
    const label = sides.label[n];
    if (state.dtype && sides.dtype[n] !== state.dtype || state.check && sides.check[n] !== state.check) continue;
    if (text && !lower[label].includes(text) || state.catalog && catalogs[label] !== state.catalog) continue;
    const x = side(n, a), y = side(n, b);
    if (!x || !y) { if (x) onlyA++; if (y) onlyB++; continue; }
    const what = change(n, x, y), key = sides.cell[n], found = { n, what, x, y };
    compared++;
    samples[what] = (samples[what] || 0) + 1;
    if (x.bytes !== "." && y.bytes !== ".") { told++; if (x.bytes === y.bytes) same++; }
    const cell = cellsOf.get(key) || { ...found, samples: 0, changed: 0 };
    cell.samples++;
    if (severity[what] < severity[cell.what]) Object.assign(cell, found, { changed: 0 });
    if (what === cell.what) {
      cell.changed++;
      if (further(found, cell) < 0) Object.assign(cell, found);
    }
    cellsOf.set(key, cell);
  }
  const found = [...cellsOf.values()], kinds = {};
  for (const cell of found) kinds[cell.what] = (kinds[cell.what] || 0) + 1;
  $("changed").replaceChildren(`${compared} samples of ${found.length} cells compared, ${onlyA} only on the first, ${onlyB} only on the second; `
    + `same bytes: ${rate(same, told)}. `, ...data.changes.filter((name) => kinds[name]).flatMap((name, n) => [n ? " · " : "",
    make("span", { class: "k-" + name.replace(" ", "-") }, `${name} ${kinds[name]} cells (${samples[name] || 0} samples)`)]));
  const shown = found.filter((cell) => cell.what !== "same").sort((p, q) => severity[p.what] - severity[q.what] || further(p, q));
  if (!shown.length) return;
  const lines = shown.slice(0, 500).map((cell) => {
    const go = linkTo(sides.label[cell.n], b, cell.n);
    go.append(data.ops[sides.label[cell.n]]);
    const shows = (one) => make("td", { class: "mark" }, make("span", { class: `sign s-${one.status}` }, sign[one.status]), ` ${one.status}`);
    return make("tr", {}, make("td", { class: "name k-" + cell.what.replace(" ", "-") }, cell.what), make("td", {}, go), make("td", {}, sides.dtype[cell.n]),
      make("td", { class: "n" }, `${cell.changed}/${cell.samples}`), shows(cell.x), shows(cell.y), make("td", { class: "n" }, number(cell.x.units)), make("td", { class: "n" }, number(cell.y.units)));
  });
  const head = ["change", "op", "dtype", "samples", "before", "after", "units before", "units after"];
  box.append(make("table", { class: "plain" }, make("thead", {}, make("tr", {}, ...head.map((name, n) => make("th", { scope: "col", class: n === 3 || n > 5 ? "n" : "" }, name)))),
    make("tbody", {}, ...lines)));
  if (shown.length > 500) box.append(make("p", { class: "note" }, `${shown.length - 500} more cells: farm report --diff writes all of them.`));
}
