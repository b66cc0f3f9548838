// ---- the panel: a square's samples -------------------------------------------------------------------------------
function caseId(row) {
  const given = value("case_id", row);
  if (given !== null) return given;
  const seed = value("seed", row);
  return `${value("check", row)}/${data.ops[place.label[row]]}/${value("dtype", row)}/${value("sample", row)}${seed ? "@" + seed : ""}`;
}
function command(row) {
  const what = `${value("run_id", row)}:${caseId(row)}:${data.backends[place.backend[row]].name}`;
  const [begin, where, how] = data.command;
  return `${begin} '${what.replaceAll("'", "'\"'\"'")}'${where}${how[value("status", row)]}`;
}
async function copy(text, button) {
  let done = true;
  try { await navigator.clipboard.writeText(text); } catch {
    const field = make("textarea", {});
    field.value = text;
    document.body.append(field);
    field.select();
    done = document.execCommand("copy");
    field.remove();
  }
  button.textContent = done ? "copied" : "not copied: select it";
}
function fill(box, row) { // what happened and how to see it, then the others on the same bytes, then every figure
  const list = make("dl"), here = side(value("case", row), place.backend[row]);
  const shown = data.fields.map(([words, name]) => [words, value(name, row)]);
  shown.push(["weak", value("weak", row) ? "yes: a constant output, or nearly any, would have passed" : "no"]);
  for (const [words, raw] of shown) list.append(make("dt", {}, words), make("dd", {}, raw === "" ? DASH : number(raw)));
  const error = value("error", row), line = command(row);
  const button = make("button", { type: "button", onclick: () => copy(line, button) }, "copy");
  if (value("standing", row) || value("cause", row)) box.append(make("p", { class: `stands ${value("standing", row)}` }, said(row),
    value("cause", row) ? make("a", { href: address({ cause: value("cause", row), sel: null }) }, "where else") : null));
  if (here?.why) box.append(make("p", { class: "why" }, here.why));
  if (error) box.append(make("pre", {}, error));
  box.append("reproduce ", button, make("code", { class: "cmd" }, line), ...trace(row), ...profile(row), ...besides(value("case", row), place.backend[row]), list);
}
const measured = (n, one) => one.units === null ? "" : `${number(one.units)} ${sides.unit[n]}${one.limit === null ? "" : `, limit ${number(one.limit)}`}`;
function besides(n, here) { // all backends on these bytes: this one first, then who stands outside, who has no result last
  const list = [], names = (some) => some.map((one) => data.backends[one.b].name).join(", ");
  for (let b = 0; b < B; b++) { const one = side(n, b); if (one) list.push(one); }
  const turn = (one) => one.b === here ? 0 : one.group === "." ? 3 : one.group === "r" ? 2 : 1;
  const lines = [...list].sort((x, y) => turn(x) - turn(y)).map((one) => {
    const same = list.filter((other) => other !== one && other.bytes === one.bytes && one.bytes !== ".");
    const name = linkTo(sides.label[n], one.b, n), about = data.backends[one.b];
    name.append(about.name);
    return make("tr", { class: `${one.outlier ? "outlier" : ""}${one.b === here ? " here" : ""}` },
      make("td", {}, name, one.outlier ? " ← outlier" : "", make("small", {}, beneath(one.b))),
      make("td", {}, make("span", { class: `sign s-${one.status}` }, sign[one.status]), " " + one.status, make("small", {}, one.why)),
      make("td", { class: "n" }, number(one.units)),
      make("td", { class: "n" }, number(one.limit)),
      make("td", {}, data.sides.agrees[one.group]),
      make("td", {}, same.length ? (same.length > 3 ? `${same.length} others` : names(same)) : DASH));
  });
  const head = ["backend", "status", `error, ${sides.unit[n]}`, "limit", "agrees with", "same bytes as"];
  return [...sides.said[n].split("\n").filter(Boolean).map((text) => make("p", {}, text)), make("table", { class: "sides" },
    make("thead", {}, make("tr", {}, ...head.map((text, at) => make("th", { scope: "col", class: at === 2 || at === 3 ? "n" : "" }, text)))),
    make("tbody", {}, ...lines)), make("p", { class: "note" }, data.units[sides.unit[n]])];
}
function sample(row, open) {
  const status = value("status", row), n = value("case", row), here = side(n, place.backend[row]);
  const words = [value("standing", row).toUpperCase(), value("dtype", row), `sample ${value("sample", row) ?? DASH}`, status, value("kind", row),
    value("stage", row) && `in ${value("stage", row)}`, here ? measured(n, here) : "",
    value("weak", row) ? "weak" : "", data.cells.length && value("check", row) !== "forward" ? value("check", row) : ""];
  const box = make("details", { class: "sample", ontoggle: () => { if (box.open && box.childElementCount === 1) fill(box, row); } },
    make("summary", {}, make("span", { class: `sign s-${status}`, "aria-hidden": "true" }, sign[status]), " ",
      words.filter(Boolean).join(" · ")));
  if (open) { box.open = true; fill(box, row); }
  return box;
}
function drawPanel(wanted) {
  const panel = $("panel");
  const closed = !state.sel;
  panel.hidden = closed;
  document.body.classList.toggle("open", !closed);
  if (closed) return panel.replaceChildren();
  const [label, b] = state.sel, one = data.backends[b], square = label * B + b, sum = sums(square);
  const close = make("button", { type: "button", class: "close", "aria-label": "close", onclick: shut }, "✕");
  panel.replaceChildren(close, make("h2", { id: "panel-title" }, data.ops[label]), make("p", {}, `on ${one.name} (${one.vendor || DASH})`));
  if (one.unavailable) return panel.append(make("p", { class: "alarm" }, `unavailable: ${one.unavailable}`));
  const only = [state.dtype, state.check].filter(Boolean).join(", ");
  panel.append(make("p", {}, `pass rate ${rate(sum.passed, sum.judged)}, coverage ${rate(sum.judged, sum.valid)}`
    + `; ${sum.planned} planned${only ? `, ${only} only` : ""}`),
  make("p", {}, statuses.map((name, s) => counts[square * S + s] ? `${name} ${counts[square * S + s]}` : "").filter(Boolean).join(" · ") || "not planned"));
  if (sum.weakly) panel.append(make("p", { class: "alarm" }, "Weakly tested: a constant output, or nearly any, would have passed every sample that passed."));
  const [from, to] = squares.get(square) || [0, 0];
  const rows = [];
  for (let row = from; row < to; row++) if (passes(row)) rows.push(row);
  if (wanted !== undefined) rows.sort((x, y) => (value("case", y) === wanted) - (value("case", x) === wanted));
  const left = sum.planned - rows.length;
  if (left > 0) panel.append(make("p", { class: "note" },
    `${left} more passing sample(s) are not on this page (up to ${data.pass_rows_per_square} per square, largest errors first); the lake has them.`));
  let at = 0;
  const more = make("button", { type: "button", onclick: () => some() }, "show more");
  const some = () => {
    more.remove();
    for (const stop = Math.min(rows.length, at + 100); at < stop; at++) panel.append(sample(rows[at], wanted === undefined ? at === 0 : value("case", rows[at]) === wanted));
    if (at < rows.length) panel.append(more);
  };
  some();
  panel.scrollTop = 0;
}
let opener = null; // what had the focus before the panel: it gets it back
function choose(label, b, n) {
  if (!$("panel").contains(document.activeElement)) opener = document.activeElement;
  state.sel = [label, b];
  active = [Math.max(0, order.indexOf(label)), Math.max(0, columns.indexOf(b))];
  writeHash();
  drawPanel(n);
  drawGrid(); // an open panel makes it narrower
  reveal();
  drawRows();
  $("panel").focus({ preventScroll: true });
}
function shut() {
  state.sel = null;
  writeHash();
  drawPanel();
  drawGrid();
  (opener?.isConnected && opener !== document.body ? opener : grid).focus({ preventScroll: true });
}
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && state.sel) shut(); });
