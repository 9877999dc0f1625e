// Building DOM without markup strings: the page's policy forbids strings that become markup, and nothing here needs them.

const SVG = "http://www.w3.org/2000/svg";

/** element("button.ghost", { type: "button", onclick }, "Save"): a null, undefined or false property or child is left out. */
export function element(tagAndClasses, properties = {}, ...children) {
  const [tag, ...classes] = tagAndClasses.split(".");
  const node = document.createElement(tag);
  node.classList.add(...classes);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** A symbol of the sprite in index.html, hidden from screen readers: the control around it carries the name. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** A button that shows only an icon; `label` is its accessible name and its tooltip. */
export function iconButton(name, label, properties = {}) {
  return element("button.icon-button", { type: "button", title: label, "aria-label": label, ...properties }, icon(name));
}
