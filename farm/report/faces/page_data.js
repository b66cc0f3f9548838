// What the page holds: columns, outcomes side by side, the state in the address, counts under the filters.
const data = JSON.parse(document.getElementById("data").textContent);
const ROW = 26, OVERSCAN = 8;
const $ = (id) => document.getElementById(id);

// ---- columns -----------------------------------------------------------------------------------------------
const cells = table(data.cells);
const place = table(data.rows, ["label", "backend"]);
const lazy = {};
const value = (name, row) => (lazy[name] ??= decode(data.rows.columns[name], data.rows.length))[row];

const statuses = data.statuses.map((pair) => pair[0]);
const sign = Object.fromEntries(data.statuses);
const S = statuses.length, B = data.backends.length, L = data.ops.length;
const rank = Object.fromEntries(statuses.map((name, n) => [name, n]));
const catalogs = decode(data.catalogs, L);
const lower = data.ops.map((name) => name.toLowerCase());
const squares = new Map(); // label * B + backend -> [first row, end): rows are sorted by square
for (let n = 0, from = 0; n < data.rows.length; n++) {
  const key = place.label[n] * B + place.backend[n];
  if (n + 1 === data.rows.length || place.label[n + 1] * B + place.backend[n + 1] !== key) {
    squares.set(key, [from, n + 1]);
    from = n + 1;
  }
}

// ---- every outcome, all backends side by side ------------------------------------------------------------------
const sides = table(data.sides), outcomes = table(data.outcomes), unitsFrom = new Int32Array(data.sides.length + 1);
const letters = Object.fromEntries(statuses.map((name) => [sign[name], name]));
for (let n = 0; n < data.sides.length; n++) {
  let many = 0;
  for (const letter of sides.status[n]) if (letter !== ".") many++;
  unitsFrom[n + 1] = unitsFrom[n] + many;
}
function side(n, b) { // the outcome of case n on backend b, null where it has no row
  const letter = sides.status[n][b];
  if (letter === ".") return null;
  let turn = 0;
  for (let k = 0; k < b; k++) if (sides.status[n][k] !== ".") turn++;
  const at = unitsFrom[n] + turn;
  return { b, turn, status: letters[letter], group: sides.group[n][b], bytes: sides.bytes[n][b],
    outlier: sides.outlier[n][b] === "1", units: outcomes.units[at], limit: outcomes.limit[at], why: outcomes.why[at] };
}

// ---- state, kept in the address ------------------------------------------------------------------------------
const NAMES = ["q", "dtype", "catalog", "check", "vendor", "cause"], SETS = { status: statuses, standing: data.standings.map((pair) => pair[0]) }, PAIR = ["a", "b"];
let state;
function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  state = { sort: given.get("sort") || "worst", sel: null };
  for (const name of NAMES) state[name] = given.get(name) || "";
  for (const name of PAIR) state[name] = data.backends.findIndex((one) => one.name === given.get(name));
  state.compact = given.has("narrow") ? given.get("narrow") === "1" : B > 14;
  for (const name in SETS) state[name] = new Set((given.get(name) || "").split(",").filter((one) => SETS[name].includes(one)));
  const chosen = given.get("sel");
  if (chosen) {
    const cut = chosen.lastIndexOf("|");
    const label = data.ops.indexOf(chosen.slice(0, cut));
    const backend = data.backends.findIndex((one) => one.name === chosen.slice(cut + 1));
    if (label >= 0 && backend >= 0) state.sel = [label, backend];
  }
}
function address(more) { // the link to this view, or to one that differs in some parts of the state
  const now = { ...state, ...more }, out = new URLSearchParams();
  for (const name of NAMES) if (now[name]) out.set(name, now[name]);
  for (const name in SETS) if (now[name].size) out.set(name, [...now[name]].join(","));
  if (now.sort !== "worst") out.set("sort", now.sort);
  for (const name of PAIR) if (now[name] >= 0) out.set(name, data.backends[now[name]].name);
  if (now.compact !== B > 14) out.set("narrow", now.compact ? "1" : "0");
  if (now.sel) out.set("sel", `${data.ops[now.sel[0]]}|${data.backends[now.sel[1]].name}`);
  return "#" + out.toString();
}
function writeHash() {
  const hash = address();
  if (hash !== (location.hash || "#")) history.replaceState(null, "", hash);
}
// A link to a square: a click opens it here, at a case if one is named; the browser may open it elsewhere.
function linkTo(label, b, n) {
  return make("a", { href: address({ sel: [label, b] }), onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    choose(label, b, n);
  } });
}

// ---- counting under the filter ---------------------------------------------------------------------------------
const counts = new Int32Array(L * B * S), totals = data.sums.map((name) => [cells[name], new Int32Array(L * B)]);
let columns = [], order = [], planned = []; // ops shown; ops planned under all filters but that of statuses
const worst = new Int8Array(L * B), failures = new Int32Array(L);
function count() {
  counts.fill(0); worst.fill(S); failures.fill(0);
  for (const [, total] of totals) total.fill(0);
  for (let n = 0; n < data.cells.length; n++) {
    if (state.dtype && cells.dtype[n] !== state.dtype || state.check && cells.check[n] !== state.check) continue;
    const square = cells.label[n] * B + cells.backend[n], status = rank[cells.status[n]];
    counts[square * S + status] += cells.planned[n];
    for (const [some, total] of totals) total[square] += some[n];
    if (status < worst[square]) worst[square] = status;
  }
  columns = [];
  for (let b = 0; b < B; b++) if (!state.vendor || data.backends[b].vendor === state.vendor) columns.push(b);
  caused.clear();
  if (state.cause) for (let row = 0; row < data.rows.length; row++)
    if (value("cause", row) === state.cause && passes(row)) caused.add(place.label[row] * B + place.backend[row]);
  const text = state.q.toLowerCase(), best = new Int32Array(L).fill(S), sortBackend = sortedBackend();
  order = [];
  planned = [];
  for (let label = 0; label < L; label++) {
    if (text && !lower[label].includes(text) || state.catalog && catalogs[label] !== state.catalog) continue;
    let there = false, hit = false;
    for (const b of columns) {
      const square = label * B + b;
      if (worst[square] < S) there = true;
      if (worst[square] < best[label]) best[label] = worst[square];
      if (worst[square] < S && matches(square)) hit = true;
      failures[label] += sums(square).failed;
    }
    if (sortBackend >= 0) best[label] = worst[label * B + sortBackend];
    if (there) planned.push(label);
    if (there && hit) order.push(label);
  }
  if (state.sort === "failures") order.sort((a, b) => failures[b] - failures[a] || best[a] - best[b] || a - b);
  else if (state.sort !== "op") order.sort((a, b) => best[a] - best[b] || failures[b] - failures[a] || a - b);
}
const sortedBackend = () => data.backends.findIndex((one) => "on " + one.name === state.sort);
function sums(square) {
  const out = Object.fromEntries(totals.map(([, total], n) => [data.sums[n], total[square]]));
  out.weakly = out.judged === 0 && out.weak > 0;
  return out;
}
const caused = new Set(); // squares with the cause that is asked for
const passes = (row) => (!state.dtype || value("dtype", row) === state.dtype) && (!state.check || value("check", row) === state.check);
const some = (names, has) => !names.size || [...names].some(has);
function matches(square) {
  return some(state.status, (name) => counts[square * S + rank[name]]) && some(state.standing, (name) => sums(square)[name])
    && (!state.cause || caused.has(square));
}
function causesOf(square) { // "new", and the reasons of what is known, each once
  const [from, to] = squares.get(square) || [0, 0], found = new Set();
  for (let row = from; row < to; row++) if ((value("standing", row) || value("cause", row)) && passes(row)) found.add(said(row));
  return [...found];
}
const said = (row) => value("standing", row) === "new" ? "NEW: no known failure covers it"
  : value("standing", row) === "stale" ? `stale: passed, although known to fail: ${value("cause", row)}`
  : `known${value("first_seen", row) ? ", first seen here" : ""}: ${value("cause", row)}`;
