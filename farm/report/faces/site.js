"use strict";
// The search box and the buttons that copy a command. Without it the site is read through its tables.
(() => {
  const up = document.body.dataset.up || "";
  const make = (tag, given, ...inside) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
    made.append(...inside);
    return made;
  };

  /** The names that hold every word of what was typed; those that begin with it first. */
  const find = (typed) => {
    const text = typed.trim().toLowerCase(), words = text.split(/\s+/);
    if (!text) return [];
    const some = NAMES.filter(([kind, name]) => words.every((word) => `${kind} ${name}`.toLowerCase().includes(word)));
    const begins = (name) => name.toLowerCase().startsWith(text) || name.toLowerCase().includes(`:${text}`);
    return [...some.filter(([, name]) => begins(name)), ...some.filter(([, name]) => !begins(name))];
  };

  const MOST = 12;
  const box = make("input", { type: "search", id: "find", placeholder: "op, backend or defect", "aria-label": "search ops, backends and defects", autocomplete: "off" });
  const list = make("ul", { class: "found", role: "status" });
  const show = () => {
    const found = find(box.value);
    list.replaceChildren(...found.slice(0, MOST).map(([kind, name, to]) => make("li", {}, make("small", {}, kind), " ", make("a", { href: up + to }, name))));
    if (found.length > MOST) list.append(make("li", {}, `and ${found.length - MOST} more`));
    if (box.value.trim() && !found.length) list.append(make("li", {}, "nothing of this name"));
  };
  box.addEventListener("input", show);
  box.addEventListener("keydown", (event) => {
    const found = find(box.value);
    if (event.key === "Enter" && found.length) location.href = up + found[0][2];
    if (event.key === "Escape") { box.value = ""; show(); }
  });
  document.getElementById("search").append(box, list);
  if (location.hash.startsWith("#find=")) { box.value = decodeURIComponent(location.hash.slice(6)); show(); }

  for (const line of document.querySelectorAll(".see > .cmd")) {
    const button = make("button", { type: "button" }, "copy");
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(line.textContent); } catch {
        getSelection().selectAllChildren(line);
        if (!document.execCommand("copy")) { button.textContent = "selected"; return; }
      }
      button.textContent = "copied";
    });
    line.before(button);
  }
})();
