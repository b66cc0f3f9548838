// ---- the steps of a case: error units over them, the first that is off marked -----------------------------------------
const traces = table(data.traces), traceOf = new Map(traces.row.map((row, n) => [row, n]));
function trace(row) {
  const n = traceOf.get(row);
  if (n === undefined) return [];
  const figures = (text) => text.split(" ").map((one) => one === "" ? null : one === "inf" ? one : Number(one));
  const units = figures(traces.units[n]), apart = figures(traces.apart[n]), came = [...traces.status[n]].map((letter) => letters[letter]);
  const names = traces.names[n] ? traces.names[n].split("\n") : came.map((_, k) => `step ${traces.from[n] + k}`);
  const limit = side(value("case", row), place.backend[row])?.limit ?? null, off = traces.off[n];
  const seen = units.map((one, k) => size(one ?? apart[k] ?? 0)), finite = seen.filter(Number.isFinite);
  const top = Math.max(8, limit || 0, ...finite) * 2, least = 0.25, wide = 596 / came.length;
  const tall = (x) => x <= least ? 0 : HIGH * Math.min(1, Math.log(x / least) / Math.log(top / least)), low = HIGH + 14;
  const picture = svgOf("svg", { class: "curve", viewBox: `0 0 640 ${low + 18}`, role: "img", "aria-label": traces.said[n] },
    svgOf("line", { x1: 0, x2: 600, y1: low, y2: low }), ...limit ? [
      svgOf("line", { class: "bound", x1: 0, x2: 600, y1: low - tall(limit), y2: low - tall(limit) }),
      svgOf("text", { x: 604, y: low - tall(limit) + 4 }, number(limit))] : [],
    ...came.map((status, k) => svgOf("rect", { ...k >= off && off >= 0 && status !== "pass" ? { class: "over" } : {}, x: (k * wide).toFixed(1),
      y: (low - Math.max(1, tall(seen[k]))).toFixed(1), width: Math.max(1, wide * 0.8).toFixed(1), height: Math.max(1, tall(seen[k])).toFixed(1) },
    svgOf("title", {}, `${names[k]}: ${status}, ${number(units[k] ?? apart[k])} units`))),
    ...off < 0 ? [] : [svgOf("text", { x: ((off + 0.4) * wide).toFixed(1), y: 10, "text-anchor": off * 2 > came.length ? "end" : "start" }, `▼ ${names[off]}`)],
    svgOf("text", { x: 0, y: low + 16 }, names[0]), svgOf("text", { x: 600, y: low + 16, "text-anchor": "end" }, names.at(-1)));
  const lines = came.map((status, k) => make("tr", { class: k === off ? "here" : "" }, make("td", { class: "n" }, String(traces.from[n] + k)), make("td", {}, names[k]),
    make("td", {}, make("span", { class: `sign s-${status}` }, sign[status]), ` ${status}`), make("td", { class: "n" }, number(units[k])), make("td", { class: "n" }, number(apart[k]))));
  const head = ["step", "what", "status", "error units", "units apart"];
  return [make("p", { class: off < 0 ? "note" : "why" }, traces.said[n]), picture, make("details", {}, make("summary", {}, `${came.length} steps`),
    make("table", { class: "sides" }, make("thead", {}, make("tr", {}, ...head.map((text, at) => make("th", { scope: "col", class: at === 1 || at === 2 ? "" : "n" }, text)))),
      make("tbody", {}, ...lines)))];
}
