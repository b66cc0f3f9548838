// ---- the heat map: only the rows in view are in the document, but all of them on paper -------------------------
const grid = $("grid");
const PRINTED = 200; // ops on paper: some pages, of those that failed or are imprecise somewhere
let unprinted = 0;
let head = null, drawn = [], spacer = null, active = [0, 0], wide = 64, left = 300, whole = false;
function measure(totals) { // how wide a column is, and the names of ops: no name is cut while there is room
  const least = state.compact ? 30 : Math.max(64, ...totals.map((sum) => 10 + 6 * Math.max(`${sum.judged}/${sum.valid}`.length, `${sum.passed}/${sum.judged}`.length)));
  const longest = order.reduce((found, label) => data.ops[label].length > found.length ? data.ops[label] : found, "");
  const probe = make("div", { class: "op probe" }, longest);
  grid.replaceChildren(probe);
  const need = Math.ceil(1.06 * (probe.offsetWidth || 300)), full = grid.clientWidth - 12, room = full - columns.length * least;
  left = Math.min(need, Math.max(room, Math.min(240, Math.round(0.4 * full))));
  wide = Math.max(least, Math.min(state.compact ? 44 : 110, Math.floor((full - left) / Math.max(1, columns.length))));
  grid.classList.toggle("narrow", state.compact);
  grid.style.setProperty("--wide", `${wide}px`);
  grid.style.setProperty("--left", `${left}px`);
  grid.style.setProperty("--tall", `${14 + 8 * Math.max(8, ...columns.map((b) => Math.max(data.backends[b].name.length, beneath(b).length - 3)))}px`);
}
const beneath = (b) => `${data.backends[b].vendor || DASH}${data.backends[b].emulated ? ", emulated" : ""}${data.backends[b].interpreted ? ", interpreted" : ""}`;
function drawHead() {
  const totals = columns.map(() => ({ valid: 0, judged: 0, passed: 0 }));
  for (const label of planned) columns.forEach((b, n) => {
    const one = sums(label * B + b);
    totals[n].valid += one.valid; totals[n].judged += one.judged; totals[n].passed += one.passed;
  });
  measure(totals);
  head = make("div", { class: "head", role: "row", "aria-rowindex": "1" }, make("div", { class: "corner", role: "columnheader" },
    make("b", {}, `${order.length} of ${L} ops`), order.length < planned.length ? `rates: all ${planned.length}` : null,
    ...[["pass rate", "passed/judged"], ["coverage", "judged/valid"]].map(([words, of]) => make("span", { title: of }, state.compact ? `${words}, %` : words, make("small", {}, of)))));
  columns.forEach((b, n) => {
    const one = data.backends[b], sum = totals[n], on = state.sort === "on " + one.name;
    const first = n === 0 || data.backends[columns[n - 1]].vendor !== one.vendor;
    const title = one.unavailable ? `${one.name}: unavailable, ${one.unavailable}`
      : `${one.vendor} ${one.name}${one.version ? ` (${one.version})` : ""}${one.emulated ? ", emulated: no device was used" : ""}${one.interpreted ? ", interpreted: kernels ran in an interpreter" : ""}: pass rate ${rate(sum.passed, sum.judged)}, coverage ${rate(sum.judged, sum.valid)}; sort by it`;
    const figure = (part, whole) => make("div", { class: "rate" }, one.unavailable ? DASH : state.compact && whole ? number(Math.floor(100 * part / whole)) : share(part, whole),
      make("small", {}, one.unavailable || !whole ? "" : `${part}/${whole}`));
    head.append(make("div", { class: `col${first ? " first" : ""}${one.emulated ? " emulated" : ""}${one.unavailable ? " gone" : ""}${on ? " sorted" : ""}`,
      id: `col-${b}`, role: "columnheader", title, "aria-colindex": String(n + 2), ...(on ? { "aria-sort": "descending" } : {}) },
    make(whole ? "div" : "button", { class: "name", type: "button", tabindex: "-1", onclick: () => sortBy(b) }, one.name, make("small", {}, beneath(b))),
    figure(sum.passed, sum.judged), figure(sum.judged, sum.valid)));
  });
}
function sortBy(b) {
  const key = "on " + data.backends[b].name, at = active;
  state.sort = state.sort === key ? "worst" : key;
  update();
  active = [-1, at[0] < 0 ? at[1] : columns.indexOf(b)];
  drawRows();
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
    + `, ${sum.judged} of ${sum.valid} valid judged` + (sum.weakly ? ", weakly tested" : "")
    + causesOf(square).map((text) => `; ${text}`).join("");
  return make("div", { ...common, "aria-label": what, title: what,
    class: `sq s-${statuses[s]}${sum.new ? " new" : ""}${sum.weakly ? " weak" : ""}${matches(square) ? "" : " faded"}${marks}` },
  make("b", {}, sign[statuses[s]]), sum.judged ? ` ${sum.passed}/${sum.judged}` : "");
}
function drawRows() {
  const top = grid.scrollTop, height = grid.clientHeight, tall = head.offsetHeight;
  const from = whole ? 0 : Math.max(0, Math.floor(top / ROW) - OVERSCAN);
  const to = whole ? Math.min(order.length, PRINTED) : Math.min(order.length, Math.ceil((top + height - tall) / ROW) + OVERSCAN);
  for (const old of drawn) old.remove();
  drawn = [];
  for (let row = from; row < to; row++) {
    const label = order[row];
    const line = make("div", { class: row === active[0] ? "row current" : "row", role: "row", "aria-rowindex": String(row + 2) },
      make("div", { class: "op", role: "rowheader", title: data.ops[label] }, data.ops[label]));
    line.style.top = `${tall + row * ROW}px`;
    columns.forEach((_, n) => line.append(drawSquare(row, n, label)));
    drawn.push(line);
  }
  grid.append(...drawn);
  columns.forEach((b, n) => $(`col-${b}`)?.classList.toggle("active", active[0] < 0 && n === active[1]));
  const here = !columns.length ? "" : active[0] < 0 ? `col-${columns[active[1]]}` : order.length ? `sq-${order[active[0]]}-${columns[active[1]]}` : "";
  if (here && $(here)) grid.setAttribute("aria-activedescendant", here);
  else grid.removeAttribute("aria-activedescendant");
}
function drawGrid() {
  const { scrollTop, scrollLeft } = grid;
  drawHead();
  spacer = make("div", { class: "spacer", role: "presentation" });
  drawn = [];
  grid.replaceChildren(head, spacer);
  spacer.style.height = `${order.length * ROW + 2}px`;
  spacer.style.width = `${left + wide * columns.length}px`;
  grid.setAttribute("aria-rowcount", String(order.length + 1));
  grid.setAttribute("aria-colcount", String(columns.length + 1));
  Object.assign(grid, { scrollTop, scrollLeft }); // it was empty for a moment
  active = [Math.min(active[0], Math.max(0, order.length - 1)), Math.min(active[1], Math.max(0, columns.length - 1))];
  drawRows();
  const beyond = whole ? Math.max(0, order.length - PRINTED) : 0;
  const left_out = [beyond ? `${beyond} more ops (filter the matrix to print those that matter)` : "",
    whole && unprinted ? `${unprinted} ops without a failure` : ""].filter(Boolean);
  $("shown").textContent = left_out.length ? `Not printed: ${left_out.join(", ")}.` : order.length ? "" : L ? "No op matches the filter." : "The run has no rows.";
}
let waiting = false;
grid.addEventListener("scroll", () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawRows(); });
}, { passive: true });
window.addEventListener("resize", () => drawGrid());
for (const [event, all] of [["beforeprint", true], ["afterprint", false]]) window.addEventListener(event, () => {
  whole = all;
  unprinted = order.length;
  if (all) order = order.filter((label) => failures[label]);
  else count();
  unprinted -= order.length;
  drawGrid();
});
grid.addEventListener("click", (event) => {
  const square = event.target.closest(".sq");
  if (!square) return;
  active = [Number(square.dataset.r), Number(square.dataset.c)];
  enter();
});
grid.addEventListener("keydown", (event) => {
  if (event.target !== grid || event.ctrlKey || event.altKey || event.metaKey || !columns.length) return;
  const page = Math.max(1, Math.floor((grid.clientHeight - head.offsetHeight) / ROW) - 1);
  const steps = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], PageDown: [page, 0],
    PageUp: [-page, 0], Home: [0, -columns.length], End: [0, columns.length] };
  if (event.key === "Enter" || event.key === " ") enter();
  else if (event.key in steps) { // the line above the first one is the head: Enter sorts
    const [y, x] = steps[event.key];
    active = [Math.max(event.key.startsWith("Page") ? 0 : -1, Math.min(order.length - 1, active[0] + y)),
      Math.max(0, Math.min(columns.length - 1, active[1] + x))];
    reveal();
    drawRows();
  } else return;
  event.preventDefault();
});
function reveal() {
  const y = Math.max(0, active[0]) * ROW, tall = head.offsetHeight, x = active[1] * wide, right = x + left + wide;
  if (y < grid.scrollTop) grid.scrollTop = y;
  else if (y + ROW > grid.scrollTop + grid.clientHeight - tall) grid.scrollTop = y + ROW + tall - grid.clientHeight;
  if (x < grid.scrollLeft) grid.scrollLeft = x;
  else if (right > grid.scrollLeft + grid.clientWidth) grid.scrollLeft = right - grid.clientWidth;
}
function enter() {
  if (active[0] < 0) sortBy(columns[active[1]]);
  else if (order.length) choose(order[active[0]], columns[active[1]]);
}
