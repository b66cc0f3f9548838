// What knows nothing of the page: columns unpacked, numbers written as the tables write them, elements made.
const DASH = "–";
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
function decode(packed, length) {
  if ("c" in packed) return new Array(length).fill(packed.c);
  if ("v" in packed) return packed.v;
  const out = new Array(length);
  if ("i" in packed) for (let n = 0; n < length; n++) {
    let index = 0;
    for (let k = 0; k < packed.w; k++) index = index * LETTERS.length + LETTERS.indexOf(packed.i[n * packed.w + k]);
    out[n] = packed.d[index];
  }
  else for (let n = 0, at = 0; n < packed.r.length; n += 2)
    for (let k = packed.r[n + 1]; k > 0; k--) out[at++] = packed.d[packed.r[n]];
  return out;
}
const table = (packed, names) => Object.fromEntries(
  (names || Object.keys(packed.columns)).map((name) => [name, decode(packed.columns[name], packed.length)]));

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
function digits(x) { // three, and whole from 1,000 to 100,000, as the tables have them
  if (Math.abs(x) >= 999.5 && Math.abs(x) < 99999.5) return String(Math.round(x));
  const [mantissa, exponent] = x.toExponential(2).split("e"), power = Number(exponent);
  if (power >= -4 && power < 3) return String(Number(x.toPrecision(3)));
  return `${Number(mantissa)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}
function number(x) {
  if (x === null || x === undefined) return DASH;
  if (typeof x === "boolean") return x ? "yes" : "no";
  if (typeof x === "string") return x;
  return Number.isInteger(x) && Math.abs(x) < 1e5 ? String(x) : digits(x);
}
function share(part, whole) {
  if (!whole) return DASH;
  const text = digits(100 * part / whole);
  return (text === "100" && part < whole ? ">99.9" : text) + " %";
}
const rate = (part, whole) => whole ? `${share(part, whole)} (${part}/${whole})` : DASH;
