"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const DASH = "–", ROW = 26, OVERSCAN = 8;
  const $ = (id) => document.getElementById(id);

  // ---- columns -----------------------------------------------------------------------------------------------
  function decode(packed, length) {
    if ("c" in packed) return new Array(length).fill(packed.c);
    if ("v" in packed) return packed.v;
    const out = new Array(length);
    if ("i" in packed) for (let n = 0; n < length; n++) out[n] = packed.d[packed.i[n]];
    else for (let n = 0, at = 0; n < packed.r.length; n += 2)
      for (let k = packed.r[n + 1]; k > 0; k--) out[at++] = packed.d[packed.r[n]];
    return out;
  }
  const table = (packed, names) => Object.fromEntries(
    (names || Object.keys(packed.columns)).map((name) => [name, decode(packed.columns[name], packed.length)]));
  const cells = table(data.cells);
  const place = table(data.rows, ["label", "backend"]);
  const lazy = {};
  const value = (name, row) => (lazy[name] ??= decode(data.rows.columns[name], data.rows.length))[row];

  const statuses = data.statuses.map((pair) => pair[0]);
  const sign = Object.fromEntries(data.statuses);
  const S = statuses.length, B = data.backends.length, L = data.ops.length;
  const rank = Object.fromEntries(statuses.map((name, n) => [name, n]));
  const flags = (names) => statuses.map((name) => names.includes(name));
  const isJudged = flags(data.judged), isFailed = flags(data.failed), notValid = flags(data.not_valid);
  const isPassed = flags(["pass", "imprecise"]);
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
    let at = unitsFrom[n];
    for (let k = 0; k < b; k++) if (sides.status[n][k] !== ".") at++;
    return { status: letters[letter], group: sides.group[n][b], bytes: sides.bytes[n][b], units: data.sides.units[at] };
  }

  // ---- small helpers: text enters the document as text only -----------------------------------------------------
  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, what] of Object.entries(attributes || {})) {
      if (name === "class") element.className = what;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), what);
      else element.setAttribute(name, what);
    }
    for (const child of children) if (child !== null) element.append(child);
    return element;
  }
  function number(x) {
    if (x === null || x === undefined) return DASH;
    if (typeof x === "string") return x;
    if (Number.isInteger(x) && Math.abs(x) < 1e5) return String(x);
    return Math.abs(x) >= 1e5 || Math.abs(x) < 1e-4 ? x.toExponential(2) : String(Number(x.toPrecision(3)));
  }
  function share(part, whole) {
    if (!whole) return DASH;
    const text = number(Number((100 * part / whole).toPrecision(3)));
    return (text === "100" && part < whole ? ">99.9" : text) + " %";
  }
  const rate = (part, whole) => whole ? `${share(part, whole)} (${part}/${whole})` : DASH;

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
  const counts = new Int32Array(L * B * S), weak = new Int32Array(L * B), beside = new Int32Array(L * B);
  let columns = [], order = [];
  const worst = new Int8Array(L * B), failures = new Int32Array(L);
  function count() {
    counts.fill(0); weak.fill(0); beside.fill(0); worst.fill(S); failures.fill(0);
    for (let n = 0; n < data.cells.length; n++) {
      if (state.dtype && cells.dtype[n] !== state.dtype || state.check && cells.check[n] !== state.check) continue;
      const square = cells.label[n] * B + cells.backend[n], status = rank[cells.status[n]];
      counts[square * S + status] += cells.rows[n];
      if (cells.status[n] === "pass") { weak[square] += cells.weak[n]; beside[square] += cells.beside[n]; }
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
          const many = counts[square * S + s];
          if (many && wanted[s]) hit = true;
          if (isFailed[s]) failures[label] += many;
        }
      }
      if (sortBackend >= 0) best[label] = worst[label * B + sortBackend];
      if (planned && hit) order.push(label);
    }
    if (state.sort === "failures") order.sort((a, b) => failures[b] - failures[a] || best[a] - best[b] || a - b);
    else if (state.sort !== "op") order.sort((a, b) => best[a] - best[b] || failures[b] - failures[a] || a - b);
  }
  const sortedBackend = () => data.backends.findIndex((one) => "on " + one.name === state.sort);
  function sums(square) {
    const out = { planned: 0, valid: 0, judged: 0, passed: 0, failed: 0, weak: weak[square] };
    for (let s = 0; s < S; s++) {
      const many = counts[square * S + s];
      out.planned += many;
      if (!notValid[s]) out.valid += many;
      if (isJudged[s]) out.judged += many;
      if (isPassed[s]) out.passed += many;
      if (isFailed[s]) out.failed += many;
    }
    // A pass that a constant output would have had as well is no evidence; beside evidence it is no gap either.
    out.valid -= beside[square]; out.judged -= out.weak; out.passed -= out.weak;
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
  const FIELDS = [["status"], ["kind"], ["stage"], ["error type", "error_type"], ["error units", "error_units"], ["max ulp", "max_ulp"],
    ["max diff", "max_diff"], ["max rel", "max_rel"], ["rmse"], ["mismatched/numel"], ["noise floor", "noise_floor"], ["weak"],
    ["placement"], ["shapes"], ["oracle"], ["policy"], ["compute precision", "compute_precision"], ["flags"], ["device"], ["node"],
    ["runtime", "runtime_version"], ["driver", "driver_version"], ["digest"], ["attempts"], ["prepare ms", "prepare_ms"],
    ["build ms", "build_ms"], ["run ms", "run_ms"]];
  function caseId(row) {
    const given = value("case_id", row);
    if (given !== null) return given;
    const seed = value("seed", row);
    return `${value("check", row)}/${data.ops[place.label[row]]}/${value("dtype", row)}/${value("sample", row)}${seed ? "@" + seed : ""}`;
  }
  function command(row) {
    const what = `${value("run_id", row)}:${caseId(row)}:${data.backends[place.backend[row]].name}`;
    const quoted = text => `'${text.replaceAll("'", "'\"'\"'")}'`;
    return `python -m farm.reproduce ${quoted(what)}${data.results === "results" ? "" : ` --results ${quoted(data.results)}`}`;
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
    for (const [words, name = words] of FIELDS) {
      let text;
      if (name === "mismatched/numel") {
        const numel = value("numel", row);
        text = numel === null ? DASH : `${number(value("mismatched", row))}/${numel}`;
      } else if (name === "weak") text = value("weak", row) ? "yes: a constant output would have passed" : "no";
      else {
        const raw = value(name, row);
        text = raw === "" ? DASH : number(raw);
      }
      list.append(make("dt", {}, words), make("dd", {}, text));
    }
    const error = value("error", row), line = command(row);
    const button = make("button", { type: "button", onclick: () => copy(line, button) }, "copy");
    box.append(...besides(value("case", row), place.backend[row]), list);
    if (error) box.append(make("pre", {}, error));
    box.append("reproduce ", button, make("code", { class: "cmd" }, line));
  }
  function besides(n, here) {
    const list = [];
    for (let b = 0; b < B; b++) { const one = side(n, b); if (one) list.push({ b, ...one }); }
    const anyone = list.some((one) => one.group === "r"), outside = list.filter((one) => !"r.".includes(one.group));
    const near = list.filter((one) => one.group === "r").length, names = (some) => some.map((one) => data.backends[one.b].name).join(", ");
    const letters = [...new Set(outside.map((one) => one.group))];
    const vendors = (some) => new Set(some.map((one) => data.backends[one.b].vendor)).size;
    const together = letters.some((g) => g !== "?" && vendors(outside.filter((one) => one.group === g)) > 1);
    const words = !outside.length ? `${near} agree with the reference`
      : anyone ? `${near} agree with the reference; ${outside.length > 1 ? "outliers" : "outlier"}: ${names(outside)}`
        + (outside.length > 1 && letters.length === 1 && letters[0] !== "?" ? ", which agree with one another" : "")
      : outside.every((one) => one.status === "imprecise") ? "nobody is within the limit of the reference, everybody within the classic tolerance"
      : together ? "nobody agrees with the reference, several vendors with one another: suspect the reference" : "nobody agrees with the reference";
    // Who stands outside comes first, who has no result last.
    const turn = (one) => one.group === "." ? 2 : one.group === "r" ? 1 : 0;
    const lines = [...list].sort((x, y) => turn(x) - turn(y)).map((one) => {
      const same = list.filter((other) => other !== one && other.bytes === one.bytes && one.bytes !== ".");
      const out = anyone && !"r.".includes(one.group);
      const name = make("a", { role: "button", tabindex: "0", onclick: () => { active = [order.indexOf(sides.label[n]), columns.indexOf(one.b)];
        state.sel = [sides.label[n], one.b]; writeHash(); drawPanel(sides.dtype[n], n); active = active.map((x) => Math.max(0, x)); drawRows(); } }, data.backends[one.b].name);
      return make("tr", { class: `${out ? "outlier" : ""}${one.b === here ? " here" : ""}` },
        make("td", {}, data.backends[one.b].vendor || DASH), make("td", {}, name, out ? " ← outlier" : "", data.backends[one.b].emulated ? " (emulated)" : ""),
        make("td", {}, make("span", { class: `sign s-${one.status}` }, sign[one.status]), " " + one.status),
        make("td", { class: "n" }, number(one.units)),
        make("td", {}, { r: "reference", ".": DASH, "?": "not kept" }[one.group] || `group ${one.group}`),
        make("td", {}, same.length ? (same.length > 3 ? `${same.length} others` : names(same)) : DASH));
    });
    const head = ["vendor", "backend", "status", "units", "agrees with", "same bytes as"];
    return [make("p", {}, words), make("table", { class: "sides" }, make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
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
      + `; ${sum.planned} planned${only ? `, ${only} alone` : ""}`),
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

  // ---- what changed from one backend to another: as farm.report.diff has it ---------------------------------------
  const judged = (one) => isJudged[rank[one.status]], failed = (one) => isFailed[rank[one.status]];
  const size = (units) => units === null ? NaN : Number(String(units).replace("inf", "Infinity"));
  const grown = (before, after) => size(after) > 1 && size(after) > data.factor * Math.max(1, size(before));
  function change(x, y) {
    if (judged(x) && !failed(x) && failed(y)) return "regression";
    if (failed(x) && judged(y) && !failed(y)) return "fix";
    if (failed(x) && failed(y)) return x.status === y.status ? "same" : "other failure";
    if (judged(x) && !judged(y)) return "lost coverage";
    if (!judged(x) && failed(y)) return "new failure";
    if (!judged(x) && judged(y)) return "new coverage";
    if (!judged(x)) return "same";
    if (x.status === "pass" && y.status === "imprecise" || grown(x.units, y.units)) return "less precise";
    if (x.status === "imprecise" && y.status === "pass" || grown(y.units, x.units)) return "more precise";
    return "same";
  }
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
      const what = change(x, y), key = `${label}|${sides.dtype[n]}|${sides.check[n]}`;
      compared++;
      samples[what] = (samples[what] || 0) + 1;
      if (x.bytes !== "." && y.bytes !== ".") { told++; if (x.bytes === y.bytes) same++; }
      const cell = cellsOf.get(key) || { n, what, x, y, samples: 0, changed: 0 };
      cell.samples++;
      if (severity[what] < severity[cell.what]) Object.assign(cell, { n, what, x, y, changed: 0 });
      if (what === cell.what) {
        cell.changed++;
        if (size(y.units) > size(cell.y.units)) Object.assign(cell, { n, x, y });
      }
      cellsOf.set(key, cell);
    }
    const found = [...cellsOf.values()], kinds = {};
    for (const cell of found) kinds[cell.what] = (kinds[cell.what] || 0) + 1;
    $("changed").replaceChildren(`${compared} samples of ${found.length} cells compared, ${onlyA} only on the first, ${onlyB} only on the second; `
      + `the very same bytes: ${rate(same, told)}. `, ...data.changes.filter((name) => kinds[name]).flatMap((name, n) => [n ? " · " : "",
      make("span", { class: "k-" + name.replace(" ", "-") }, `${name} ${kinds[name]} cells (${samples[name] || 0} samples)`)]));
    const shown = found.filter((cell) => cell.what !== "same").sort((p, q) => severity[p.what] - severity[q.what] || sides.label[p.n] - sides.label[q.n]);
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
    if (shown.length > 500) box.append(make("p", { class: "note" }, `${shown.length - 500} more cells: python -m farm.report --diff writes all of them.`));
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
