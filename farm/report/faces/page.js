(() => {
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
  const sides = table(data.sides), unitsFrom = new Int32Array(data.sides.length + 1);
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
    return { b, turn, status: letters[letter], group: sides.group[n][b], bytes: sides.bytes[n][b],
      outlier: sides.outlier[n][b] === "1", units: data.sides.units[unitsFrom[n] + turn] };
  }

  // ---- state, kept in the address ------------------------------------------------------------------------------
  const NAMES = ["q", "dtype", "catalog", "check", "vendor"], PAIR = ["a", "b"];
  let state;
  function readHash() {
    const given = new URLSearchParams(location.hash.slice(1));
    state = { status: new Set(), sort: given.get("sort") || "op", sel: null };
    for (const name of NAMES) state[name] = given.get(name) || "";
    for (const name of PAIR) state[name] = data.backends.findIndex((one) => one.name === given.get(name));
    state.compact = given.has("narrow") ? given.get("narrow") === "1" : B > 14;
    for (const name of (given.get("status") || "").split(",")) if (name in rank) state.status.add(name);
    const chosen = given.get("sel");
    if (chosen) {
      const cut = chosen.lastIndexOf("|");
      const label = data.ops.indexOf(chosen.slice(0, cut));
      const backend = data.backends.findIndex((one) => one.name === chosen.slice(cut + 1));
      if (label >= 0 && backend >= 0) state.sel = [label, backend];
    }
  }
  function writeHash() {
    const out = new URLSearchParams();
    for (const name of NAMES) if (state[name]) out.set(name, state[name]);
    if (state.status.size) out.set("status", [...state.status].join(","));
    if (state.sort !== "op") out.set("sort", state.sort);
    for (const name of PAIR) if (state[name] >= 0) out.set(name, data.backends[state[name]].name);
    if (state.compact !== B > 14) out.set("narrow", state.compact ? "1" : "0");
    if (state.sel) out.set("sel", `${data.ops[state.sel[0]]}|${data.backends[state.sel[1]].name}`);
    const hash = "#" + out.toString();
    if (hash !== (location.hash || "#")) history.replaceState(null, "", hash);
  }

  // ---- counting under the filter ---------------------------------------------------------------------------------
  const counts = new Int32Array(L * B * S), totals = data.sums.map((name) => [cells[name], new Int32Array(L * B)]);
  let columns = [], order = [];
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
    const wanted = statuses.map((name) => state.status.has(name)), any = state.status.size > 0;
    const text = state.q.toLowerCase(), best = new Int32Array(L).fill(S), sortBackend = sortedBackend();
    order = [];
    for (let label = 0; label < L; label++) {
      if (text && !lower[label].includes(text) || state.catalog && catalogs[label] !== state.catalog) continue;
      let planned = false, hit = !any;
      for (const b of columns) {
        const square = label * B + b;
        if (worst[square] < S) planned = true;
        if (worst[square] < best[label]) best[label] = worst[square];
        for (let s = 0; s < S; s++) {
          if (counts[square * S + s] && wanted[s]) hit = true;
        }
        failures[label] += sums(square).failed;
      }
      if (sortBackend >= 0) best[label] = worst[label * B + sortBackend];
      if (planned && hit) order.push(label);
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
  function matches(square) {
    if (!state.status.size) return true;
    for (const name of state.status) if (counts[square * S + rank[name]]) return true;
    return false;
  }

  // ---- the heat map: only the rows in view are in the document ---------------------------------------------------
  const grid = $("grid");
  let head = null, drawn = [], spacer = null, active = [0, 0], wide = 64, left = 300;
  function drawHead() {
    const totals = columns.map(() => ({ valid: 0, judged: 0, passed: 0 }));
    for (const label of order) columns.forEach((b, n) => {
      const one = sums(label * B + b);
      totals[n].valid += one.valid; totals[n].judged += one.judged; totals[n].passed += one.passed;
    });
    // Denominators must not run into each other: a column is as wide as its longest one.
    wide = state.compact ? 28 : Math.max(64, ...totals.map((sum) => 10 + 6 * Math.max(`${sum.judged}/${sum.valid}`.length, `${sum.passed}/${sum.judged}`.length)));
    grid.classList.toggle("narrow", state.compact);
    left = Math.round(Math.min(300, 0.45 * document.documentElement.clientWidth));
    grid.style.setProperty("--wide", `${wide}px`);
    grid.style.setProperty("--left", `${left}px`);
    head = make("div", { class: "head", role: "row", "aria-rowindex": "1" }, make("div", { class: "corner", role: "columnheader" },
      make("b", {}, `${order.length} of ${L} ops`), make("span", {}, "pass rate", make("br"), "passed/judged"),
      make("span", {}, "coverage", make("br"), "judged/valid")));
    columns.forEach((b, n) => {
      const one = data.backends[b], sum = totals[n], on = state.sort === "on " + one.name;
      const first = n === 0 || data.backends[columns[n - 1]].vendor !== one.vendor;
      const title = one.unavailable ? `${one.name}: unavailable, ${one.unavailable}`
        : `${one.vendor} ${one.name}${one.version ? ` (${one.version})` : ""}${one.emulated ? ", emulated: no device was used" : ""}: pass rate ${rate(sum.passed, sum.judged)}, coverage ${rate(sum.judged, sum.valid)}; sort by it`;
      let span = 1; // columns of the vendor from here on
      while (n + span < columns.length && data.backends[columns[n + span]].vendor === one.vendor) span++;
      const band = first ? make("div", { class: "band", title: one.vendor }, one.vendor || DASH) : null;
      if (band) band.style.width = `${span * wide}px`;
      const figure = (part, whole) => make("div", { class: "rate" }, one.unavailable ? DASH : state.compact && whole ? number(Math.floor(100 * part / whole)) : share(part, whole),
        make("small", {}, one.unavailable || !whole ? "" : `${part}/${whole}`));
      head.append(make("div", { class: `col${first ? " first" : ""}${one.emulated ? " emulated" : ""}${one.unavailable ? " gone" : ""}${on ? " sorted" : ""}`,
        role: "columnheader", title, "aria-colindex": String(n + 2), ...(on ? { "aria-sort": "descending" } : {}) },
      band, make("button", { type: "button", onclick: () => { state.sort = on ? "op" : "on " + one.name; update(); } },
        one.name, one.emulated ? make("small", {}, "emulated") : null), figure(sum.passed, sum.judged), figure(sum.judged, sum.valid)));
    });
  }
  function drawSquare(row, n, label) {
    const b = columns[n], one = data.backends[b], square = label * B + b, s = worst[square];
    const id = `sq-${label}-${b}`, name = `${data.ops[label]} on ${one.name}`;
    const common = { id, role: "gridcell", "data-r": String(row), "data-c": String(n), "aria-colindex": String(n + 2) };
    const marks = (row === active[0] && n === active[1] ? " active" : "")
      + (state.sel && state.sel[0] === label && state.sel[1] === b ? " selected" : "");
    if (s === S) {
      const why = one.unavailable ? `unavailable: ${one.unavailable}` : "not planned";
      return make("div", { ...common, class: (one.unavailable ? "sq gone" : "sq none") + marks, "aria-label": `${name}: ${why}`,
        title: `${name}: ${why}` }, one.unavailable ? "" : "·");
    }
    const sum = sums(square);
    const what = `${name}: ${statuses[s]}, ` + (sum.judged ? `${sum.passed} of ${sum.judged} judged passed` : "none judged")
      + `, ${sum.judged} of ${sum.valid} valid judged` + (sum.weakly ? ", weakly tested" : "");
    return make("div", { ...common, "aria-label": what, title: what,
      class: `sq s-${statuses[s]}${sum.weakly ? " weak" : ""}${matches(square) ? "" : " faded"}${marks}` },
    make("b", {}, sign[statuses[s]]), sum.judged ? ` ${sum.passed}/${sum.judged}` : "");
  }
  function drawRows() {
    const top = grid.scrollTop, height = grid.clientHeight, tall = head.offsetHeight;
    const from = Math.max(0, Math.floor(top / ROW) - OVERSCAN);
    const to = Math.min(order.length, Math.ceil((top + height - tall) / ROW) + OVERSCAN);
    for (const old of drawn) old.remove();
    drawn = [];
    for (let row = from; row < to; row++) {
      const label = order[row];
      const line = make("div", { class: "row", role: "row", "aria-rowindex": String(row + 2) },
        make("div", { class: "op", role: "rowheader", title: data.ops[label] }, data.ops[label]));
      line.style.top = `${tall + row * ROW}px`;
      columns.forEach((_, n) => line.append(drawSquare(row, n, label)));
      drawn.push(line);
    }
    grid.append(...drawn);
    const here = order.length && columns.length ? `sq-${order[active[0]]}-${columns[active[1]]}` : "";
    if (here && $(here)) grid.setAttribute("aria-activedescendant", here);
    else grid.removeAttribute("aria-activedescendant");
  }
  function drawGrid() {
    drawHead();
    spacer = make("div", { role: "presentation" });
    drawn = [];
    grid.replaceChildren(head, spacer);
    spacer.style.height = `${order.length * ROW + 2}px`;
    spacer.style.width = `${left + wide * columns.length}px`;
    grid.setAttribute("aria-rowcount", String(order.length + 1));
    grid.setAttribute("aria-colcount", String(columns.length + 1));
    active = [Math.min(active[0], Math.max(0, order.length - 1)), Math.min(active[1], Math.max(0, columns.length - 1))];
    drawRows();
    $("shown").textContent = order.length ? "" : L ? "No op matches the filter." : "The run has no rows.";
  }
  let waiting = false;
  grid.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; drawRows(); });
  }, { passive: true });
  window.addEventListener("resize", () => drawRows());
  grid.addEventListener("click", (event) => {
    const square = event.target.closest(".sq");
    if (!square) return;
    active = [Number(square.dataset.r), Number(square.dataset.c)];
    choose();
  });
  grid.addEventListener("keydown", (event) => {
    if (event.target !== grid || event.ctrlKey || event.altKey || event.metaKey || !order.length || !columns.length) return;
    const page = Math.max(1, Math.floor((grid.clientHeight - head.offsetHeight) / ROW) - 1);
    const steps = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], PageDown: [page, 0],
      PageUp: [-page, 0], Home: [0, -columns.length], End: [0, columns.length] };
    if (event.key === "Enter" || event.key === " ") choose();
    else if (event.key in steps) {
      const clamp = (x, n) => Math.max(0, Math.min(n - 1, x));
      active = [clamp(active[0] + steps[event.key][0], order.length), clamp(active[1] + steps[event.key][1], columns.length)];
      reveal();
      drawRows();
    } else return;
    event.preventDefault();
  });
  function reveal() {
    const y = active[0] * ROW, tall = head.offsetHeight, x = active[1] * wide, right = x + left + wide;
    if (y < grid.scrollTop) grid.scrollTop = y;
    else if (y + ROW > grid.scrollTop + grid.clientHeight - tall) grid.scrollTop = y + ROW + tall - grid.clientHeight;
    if (x < grid.scrollLeft) grid.scrollLeft = x;
    else if (right > grid.scrollLeft + grid.clientWidth) grid.scrollLeft = right - grid.clientWidth;
  }
  function choose() {
    state.sel = [order[active[0]], columns[active[1]]];
    writeHash();
    drawPanel();
    reveal();
    drawRows();
    $("panel").focus({ preventScroll: true });
  }

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
    button.textContent = done ? "copied" : "select it and copy";
  }
  function fill(box, row) {
    const list = make("dl");
    const shown = data.fields.map(([words, name]) => [words, value(name, row)]);
    shown.push(["weak", value("weak", row) ? "yes: a constant output would have passed" : "no"]);
    for (const [words, raw] of shown) list.append(make("dt", {}, words), make("dd", {}, raw === "" ? DASH : number(raw)));
    const error = value("error", row), line = command(row);
    const button = make("button", { type: "button", onclick: () => copy(line, button) }, "copy");
    box.append(...besides(value("case", row), place.backend[row]), list);
    if (error) box.append(make("pre", {}, error));
    box.append("reproduce ", button, make("code", { class: "cmd" }, line));
  }
  function besides(n, here) {
    const list = [], names = (some) => some.map((one) => data.backends[one.b].name).join(", ");
    for (let b = 0; b < B; b++) { const one = side(n, b); if (one) list.push(one); }
    // Who stands outside comes first, who has no result last.
    const turn = (one) => one.group === "." ? 2 : one.group === "r" ? 1 : 0;
    const lines = [...list].sort((x, y) => turn(x) - turn(y)).map((one) => {
      const same = list.filter((other) => other !== one && other.bytes === one.bytes && one.bytes !== ".");
      const name = make("a", { role: "button", tabindex: "0", onclick: () => { active = [order.indexOf(sides.label[n]), columns.indexOf(one.b)];
        state.sel = [sides.label[n], one.b]; writeHash(); drawPanel(sides.dtype[n], n); active = active.map((x) => Math.max(0, x)); drawRows(); } }, data.backends[one.b].name);
      return make("tr", { class: `${one.outlier ? "outlier" : ""}${one.b === here ? " here" : ""}` },
        make("td", {}, data.backends[one.b].vendor || DASH), make("td", {}, name, one.outlier ? " ← outlier" : "", data.backends[one.b].emulated ? " (emulated)" : ""),
        make("td", {}, make("span", { class: `sign s-${one.status}` }, sign[one.status]), " " + one.status),
        make("td", { class: "n" }, number(one.units)),
        make("td", {}, data.sides.agrees[one.group]),
        make("td", {}, same.length ? (same.length > 3 ? `${same.length} others` : names(same)) : DASH));
    });
    const head = ["vendor", "backend", "status", "units", "agrees with", "same bytes as"];
    return [...sides.said[n].split("\n").map((text) => make("p", {}, text)), make("table", { class: "sides" }, make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
      make("tbody", {}, ...lines))];
  }
  function sample(row, open) {
    const status = value("status", row), units = value("error_units", row);
    const words = [value("dtype", row), `sample ${value("sample", row) ?? DASH}`, status, value("kind", row),
      value("stage", row) && `in ${value("stage", row)}`, units === null ? "" : `${number(units)} error units`,
      value("weak", row) ? "weak" : "", data.cells.length && value("check", row) !== "forward" ? value("check", row) : ""];
    const box = make("details", { class: "sample", ontoggle: () => { if (box.open && box.childElementCount === 1) fill(box, row); } },
      make("summary", {}, make("span", { class: `sign s-${status}`, "aria-hidden": "true" }, sign[status]), " ",
        words.filter(Boolean).join(" · ")));
    if (open) { box.open = true; fill(box, row); }
    return box;
  }
  function drawPanel(dtype, wanted) {
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
    if (sum.weakly) panel.append(make("p", { class: "alarm" }, "Weakly tested: a constant output would have passed every sample that passed."));
    const [from, to] = squares.get(square) || [0, 0];
    const rows = [];
    for (let row = from; row < to; row++)
      if ((!state.dtype || value("dtype", row) === state.dtype) && (!state.check || value("check", row) === state.check)) rows.push(row);
    if (wanted !== undefined) rows.sort((x, y) => (value("case", y) === wanted) - (value("case", x) === wanted));
    const left = sum.planned - rows.length;
    if (left > 0) panel.append(make("p", { class: "note" },
      `${left} more passing sample(s) are not in this page (it holds up to ${data.pass_rows_per_square} per square, those with the largest error); the lake has them.`));
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
  function shut() {
    state.sel = null;
    writeHash();
    drawPanel();
    drawRows();
    grid.focus({ preventScroll: true });
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && state.sel) shut(); });

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
      + `the very same bytes: ${rate(same, told)}. `, ...data.changes.filter((name) => kinds[name]).flatMap((name, n) => [n ? " · " : "",
      make("span", { class: "k-" + name.replace(" ", "-") }, `${name} ${kinds[name]} cells (${samples[name] || 0} samples)`)]));
    const shown = found.filter((cell) => cell.what !== "same").sort((p, q) => severity[p.what] - severity[q.what] || further(p, q));
    if (!shown.length) return;
    const lines = shown.slice(0, 500).map((cell) => {
      const go = make("a", { role: "button", tabindex: "0", href: "#", onclick: (event) => { event.preventDefault(); state.sel = [sides.label[cell.n], b];
        active = [Math.max(0, order.indexOf(sides.label[cell.n])), Math.max(0, columns.indexOf(b))]; writeHash(); drawPanel("", cell.n); drawRows(); } }, data.ops[sides.label[cell.n]]);
      const shows = (one) => make("td", { class: "mark" }, make("span", { class: `sign s-${one.status}` }, sign[one.status]), ` ${one.status}`);
      return make("tr", {}, make("td", { class: "name k-" + cell.what.replace(" ", "-") }, cell.what), make("td", {}, go), make("td", {}, sides.dtype[cell.n]),
        make("td", { class: "n" }, `${cell.changed}/${cell.samples}`), shows(cell.x), shows(cell.y), make("td", { class: "n" }, number(cell.x.units)), make("td", { class: "n" }, number(cell.y.units)));
    });
    const head = ["change", "op", "dtype", "samples", "before", "after", "units before", "units after"];
    box.append(make("table", { class: "plain" }, make("thead", {}, make("tr", {}, ...head.map((name, n) => make("th", { scope: "col", class: n === 3 || n > 5 ? "n" : "" }, name)))),
      make("tbody", {}, ...lines)));
    if (shown.length > 500) box.append(make("p", { class: "note" }, `${shown.length - 500} more cells: farm report --diff writes all of them.`));
  }

  // ---- filters -----------------------------------------------------------------------------------------------------
  const options = (id, names) => {
    for (const name of [...new Set(names)].sort()) $(id).append(make("option", { value: name }, name || DASH));
    if (new Set(names).size < 2) $(id).parentElement.hidden = true;
  };
  options("dtype", cells.dtype);
  options("catalog", catalogs);
  options("check", cells.check);
  options("vendor", data.backends.map((one) => one.vendor));
  const occurring = new Set(cells.status);
  for (const name of statuses) if (occurring.has(name)) {
    $("status").append(make("button", { type: "button", class: "chip", "data-status": name, "aria-pressed": "false", onclick: () => {
      if (!state.status.delete(name)) state.status.add(name);
      update();
    } }, make("span", { class: `sign s-${name}`, "aria-hidden": "true" }, sign[name]), name));
  }
  for (const name of NAMES) $(name).addEventListener("input", () => { state[name] = $(name).value; update(); });
  data.backends.forEach((one, b) => { for (const name of PAIR) if (!one.unavailable) $(name).append(make("option", { value: String(b) }, one.name)); });
  for (const name of PAIR) $(name).addEventListener("input", () => { state[name] = $(name).value === "" ? -1 : Number($(name).value); writeHash(); drawChanges(); });
  $("swap").addEventListener("click", () => { [state.a, state.b] = [state.b, state.a]; showState(); writeHash(); drawChanges(); });
  $("pair").addEventListener("submit", (event) => event.preventDefault());
  if (B < 2) $("two").hidden = true;
  $("compact").addEventListener("input", () => { state.compact = $("compact").checked; writeHash(); drawGrid(); });
  $("sort").addEventListener("input", () => { state.sort = $("sort").value; update(); });
  $("reset").addEventListener("click", () => { history.replaceState(null, "", "#"); start(); });
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  function showState() {
    for (const name of NAMES) $(name).value = state[name];
    for (const name of PAIR) $(name).value = state[name] < 0 ? "" : String(state[name]);
    $("compact").checked = state.compact;
    const on = sortedBackend();
    $("sort").querySelector(".by-backend")?.remove();
    if (on >= 0) $("sort").append(make("option", { value: state.sort, class: "by-backend" }, "worst " + state.sort));
    $("sort").value = state.sort;
    for (const chip of $("status").querySelectorAll(".chip"))
      chip.setAttribute("aria-pressed", String(state.status.has(chip.dataset.status)));
  }
  function update() {
    writeHash();
    showState();
    count();
    grid.scrollTop = 0;
    active = [0, 0];
    drawGrid();
    drawPanel();
    drawChanges();
  }
  function start() {
    readHash();
    showState();
    count();
    if (state.sel) active = [Math.max(0, order.indexOf(state.sel[0])), Math.max(0, columns.indexOf(state.sel[1]))];
    drawGrid();
    drawPanel(); // before reveal: an open panel makes the grid narrower
    drawChanges();
    if (state.sel) { reveal(); drawRows(); }
    // A shared view opens where it is.
    if (state.a >= 0 && state.b >= 0 && !state.sel) $("two").scrollIntoView();
    else if (location.hash.length > 1) $("filters").scrollIntoView();
  }
  window.addEventListener("hashchange", start);
  start();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
