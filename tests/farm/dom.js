// As much of a document as farm/report/faces/page.js asks for, so that an engine without a browser can run it.
class Element {
  constructor(tag) {
    Object.assign(this, { tag, attributes: {}, children: [], listeners: {}, dataset: {}, style: { setProperty() {} },
      className: "", value: "", hidden: false, parentElement: null, scrollTop: 0, scrollLeft: 0, clientWidth: 1e6, clientHeight: 1e6, offsetHeight: 100 });
    this.classList = { toggle: (name, on = !this.classList.contains(name)) => {
      this.className = [...this.className.split(" ").filter((one) => one && one !== name), ...(on ? [name] : [])].join(" ");
    }, contains: (name) => this.className.split(" ").includes(name) };
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
    if (name.startsWith("data-")) this.dataset[name.slice(5)] = String(value);
    if (name === "value") this.value = String(value);
    if (name === "class") this.className = String(value);
  }
  removeAttribute(name) { delete this.attributes[name]; }
  append(...some) {
    for (const one of some) { if (one instanceof Element) one.parentElement = this; this.children.push(one); }
  }
  remove() {
    const kin = this.parentElement?.children;
    if (kin?.includes(this)) kin.splice(kin.indexOf(this), 1);
  }
  replaceChildren(...some) { this.children = []; this.append(...some); }
  get childElementCount() { return this.children.filter((one) => one instanceof Element).length; }
  get textContent() { return this.children.map((one) => one instanceof Element ? one.textContent : String(one)).join(""); }
  set textContent(text) { this.children = [text]; }
  * all() { for (const one of this.children) if (one instanceof Element) { yield one; yield* one.all(); } }
  querySelectorAll(selector) { return [...this.all()].filter((one) => one.className.split(" ").includes(selector.slice(1))); }
  querySelector(selector) { return this.querySelectorAll(selector)[0]; }
  addEventListener(type, what) { (this.listeners[type] ??= []).push(what); }
  contains(other) { return other === this || [...this.all()].includes(other); }
  get isConnected() { return root.contains(this); }
  fire(type, more) { for (const what of this.listeners[type] || []) what({ type, target: this, preventDefault() {}, ...more }); }
  focus() { document.activeElement = this; }
  scrollIntoView() {}
}
class URLSearchParams {
  constructor(text = "") {
    this.pairs = new Map(text.split("&").filter(Boolean).map((pair) => pair.split("=").map((word) => decodeURIComponent(word.replaceAll("+", " ")))));
  }
  get(name) { return this.pairs.get(name) ?? null; }
  has(name) { return this.pairs.has(name); }
  set(name, value) { this.pairs.set(name, value); }
  toString() { return [...this.pairs].map((pair) => pair.map(encodeURIComponent).join("=")).join("&"); }
}
const root = new Element("html"), window = new Element("window"), location = { hash: "" };
const document = { documentElement: root, body: new Element("body"), createElement: (tag) => new Element(tag),
  createElementNS: (_, tag) => new Element(tag),
  addEventListener(type, what) { root.addEventListener(type, what); }, querySelectorAll: (selector) => root.querySelectorAll(selector),
  getElementById: (id) => [...root.all()].find((one) => one.attributes.id === id) || null };
const history = { replaceState: (_, __, hash) => { location.hash = hash; } };
const performance = { now: () => 0 }, requestAnimationFrame = (what) => what();

// ---- for the tests ----
function boot(elements, data) {
  for (const attributes of elements) {
    const element = new Element("div"), label = new Element("label");
    for (const name in attributes) element.setAttribute(name, attributes[name]);
    label.append(element);
    root.append(label);
  }
  document.getElementById("data").textContent = data;
}
function input(id, value) { const one = document.getElementById(id); one.value = value; one.fire("input"); }
function visit(hash) { location.hash = hash; window.fire("hashchange"); }
function press(id, ...keys) { for (const key of keys) document.getElementById(id).fire("keydown", { key }); }
function click(where, selector, n) { document.getElementById(where).querySelectorAll(selector)[n].fire("click"); }
const seen = (one) => ({ class: one.className, title: one.attributes.title || "", href: one.attributes.href || "",
  tabindex: one.attributes.tabindex ?? "", text: one.textContent });
const look = (id, selector) => JSON.stringify(document.getElementById(id).querySelectorAll(selector).map(seen));
const lines = (id, tag) => JSON.stringify([...document.getElementById(id).all()].filter((one) => one.tag === tag)
  .map((one) => ({ ...seen(one), cells: one.children.map((cell) => cell.textContent ?? cell) })));
