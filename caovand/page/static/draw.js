// The few things with which every section draws. Text goes in as text, never as markup: log lines,
// events and names come from outside.

export const $ = (id) => document.getElementById(id);

/** An element; `props` are properties, or attributes where a name has a dash or is `role`. */
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (name === "class") made.className = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name.includes("-") || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

export function icon(name, label) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const use = document.createElementNS(space, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("class", "icon");
  if (label) {
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", label);
  } else svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

const drawn = new WeakMap();

/** Fill `place` with what `make` returns, but only where `from` is not what it was drawn from. */
export function redraw(place, from, make) {
  const text = JSON.stringify(from);
  if (drawn.get(place) === text) return;
  drawn.set(place, text);
  place.replaceChildren(...[make()].flat().filter((child) => child !== null && child !== ""));
}

/** Text that may change each second: the element stays, so that a selection in it does too. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A bar of which `share` is full; its words are next to it, so that it is hidden from readers. */
export function meter(share, kind = "") {
  const full = el("i", { class: kind });
  full.style.inlineSize = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  return el("div", { class: "meter", "aria-hidden": "true" }, full);
}

/** A button that copies `text`, and shows for a moment that it did. */
export function copier(text, label, done) {
  const button = el("button", { type: "button", class: "quiet copy", title: label, "aria-label": label });
  button.append(icon("copy"));
  button.addEventListener("click", async () => {
    if (!(await copied(text))) return;
    button.replaceChildren(done);
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text); // only over https or from the machine itself
    return true;
  } catch {
    const field = el("textarea", { value: text, class: "symbols" });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
