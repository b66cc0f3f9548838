// ---- filters -----------------------------------------------------------------------------------------------------
const options = (id, names) => {
  for (const name of [...new Set(names)].sort()) $(id).append(make("option", { value: name }, name || DASH));
  if (new Set(names).size < 2) $(id).parentElement.hidden = true;
};
options("dtype", cells.dtype);
options("catalog", catalogs);
options("check", cells.check);
options("vendor", data.backends.map((one) => one.vendor));
function chip(set, name, title, ...children) {
  $(set).append(make("button", { type: "button", class: "chip", title, "data-name": name, "aria-pressed": "false", onclick: () => {
    if (!state[set].delete(name)) state[set].add(name);
    update();
  } }, ...children));
}
const occurring = new Set(cells.status);
for (const name of statuses) if (occurring.has(name)) chip("status", name, name, make("span", { class: `sign s-${name}`, "aria-hidden": "true" }, sign[name]), name);
for (const [name, words] of data.standings) chip("standing", name, words, make("b", {}, String(cells[name].reduce((sum, n) => sum + n, 0))), name);
$("standing").hidden = !data.standings.length;
// A row of chips, and a table's links, are one stop of the Tab key; the arrow keys go along it.
const along = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
for (const [bars, stop] of [[".chips", ".chip"], [".links", ".go"]]) for (const bar of document.querySelectorAll(bars)) {
  const stops = [...bar.querySelectorAll(stop)];
  stops.forEach((one, n) => one.setAttribute("tabindex", n ? "-1" : "0"));
  bar.addEventListener("keydown", (event) => {
    const next = stops[stops.indexOf(event.target) + along[event.key]];
    if (!next) return;
    for (const one of stops) one.setAttribute("tabindex", one === next ? "0" : "-1");
    next.focus();
    event.preventDefault();
  });
}
$("skip").addEventListener("click", (event) => { event.preventDefault(); grid.scrollIntoView(); grid.focus({ preventScroll: true }); });
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
  for (const set in SETS) for (const one of $(set).querySelectorAll(".chip"))
    one.setAttribute("aria-pressed", String(state[set].has(one.dataset.name)));
  $("cause").parentElement.hidden = !state.cause;
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
function start(event) {
  if (event && /^#[^=]+$/.test(location.hash)) return; // a place of the page, no state
  readHash();
  showState();
  count();
  if (state.sel) active = [Math.max(0, order.indexOf(state.sel[0])), Math.max(0, columns.indexOf(state.sel[1]))];
  drawPanel(); // before the grid: an open panel makes it narrower
  drawGrid();
  drawChanges();
  if (state.sel) { reveal(); drawRows(); }
  if (state.sel && event) { // a link of this page
    opener = document.activeElement;
    return $("panel").focus({ preventScroll: true });
  }
  // A shared view opens where it is.
  if (state.a >= 0 && state.b >= 0 && !state.sel) $("two").scrollIntoView();
  else if (location.hash.includes("=")) $("filters").scrollIntoView();
}
for (const line of document.querySelectorAll("#main code.cmd")) {
  const box = make("span", { class: "copied" }), button = make("button", { type: "button", onclick: () => copy(line.textContent, button) }, "copy");
  line.replaceWith(box);
  box.append(button, line);
}
window.addEventListener("hashchange", start);
start();
document.documentElement.dataset.ready = String(Math.round(performance.now()));
