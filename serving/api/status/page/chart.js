// A line chart of the last looks, newest at the right edge, that glides on by a step with each of them.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 100;
const stillWanted = matchMedia("(prefers-reduced-motion: reduce)");

function shape(name, className) {
  const node = document.createElementNS(SVG, name);
  node.setAttribute("class", className);
  return node;
}

/** The next round number that is not below: a scale that seldom changes. */
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 7.5, 10].map((step) => step * power).find((step) => step >= value * 0.999999);
}

export class Chart {
  #svg = shape("svg", "");
  #moving = shape("g", "");
  #cursor = shape("line", "cursor");
  #most = document.createElement("span");
  #least = document.createElement("span");
  #reading = document.createElement("span");
  #lines;
  #series = [];
  #slots = 0;
  #options;

  /**
   * `names` are of the lines, the first in front; `format` writes a value; `most` fixes the scale's top, `least` is the
   * lowest top. With a `floor` the scale is logarithmic and begins there, for values that differ many times over.
   */
  constructor(place, names, options) {
    this.#options = { least: 1e-9, ...options };
    this.#lines = names.map((name, index) => {
      const key = "ab"[index];
      return { name, area: shape("path", `area ${key}`), trace: shape("path", `trace ${key}`) };
    });
    for (const y of [0.5, HEIGHT / 2, HEIGHT - 0.5]) {
      const rule = shape("line", "rule");
      for (const [name, value] of [["x1", 0], ["x2", 10000], ["y1", y], ["y2", y]]) rule.setAttribute(name, value);
      this.#svg.append(rule);
    }
    for (const line of [...this.#lines].reverse()) this.#moving.append(line.area, line.trace);
    this.#cursor.setAttribute("y2", HEIGHT);
    this.#svg.append(this.#moving, this.#cursor);
    this.#svg.setAttribute("preserveAspectRatio", "none");
    this.#svg.setAttribute("role", "img");
    this.#most.className = "most";
    this.#reading.className = "reading";
    this.#least.className = "least";
    this.#least.textContent = options.floor ? options.format(options.floor) : "";
    this.#cursor.style.display = "none";
    place.append(this.#svg, this.#most, this.#least, this.#reading);
    place.addEventListener("pointermove", (event) => this.#read(event));
    place.addEventListener("pointerleave", () => this.#read(null));
  }

  /** `series` has one list for each line, oldest first, with null where nothing is known; `slots` is how many fit. */
  draw(series, slots, milliseconds) {
    this.#series = series;
    this.#slots = slots;
    const values = series.flat().filter((value) => value !== null);
    const most = this.#options.most ?? roundUp(Math.max(this.#options.least, ...values));
    this.#svg.setAttribute("viewBox", `0 0 ${slots - 1} ${HEIGHT}`);
    this.#most.textContent = this.#options.format(most);
    series.forEach((list, index) => this.#trace(this.#lines[index], list, most));
    this.#svg.setAttribute("aria-label", this.#lines.map((line, index) => `${line.name} ${this.#options.format(series[index].at(-1) ?? null)}`).join(", "));
    if (milliseconds && !stillWanted.matches) {
      this.#moving.animate([{ transform: "translateX(1px)" }, { transform: "translateX(0)" }], milliseconds);
    }
  }

  /** Of the height. */
  #share(value, most) {
    const { floor } = this.#options;
    const share = floor ? Math.log(Math.max(value, floor) / floor) / Math.log(most / floor) : value / most;
    return Math.min(share, 1);
  }

  #trace(line, list, most) {
    const first = this.#slots - list.length;
    const pieces = [];
    let piece = [];
    list.forEach((value, index) => {
      if (value === null) {
        if (piece.length) pieces.push(piece);
        piece = [];
      } else {
        piece.push([first + index, HEIGHT - 1 - this.#share(value, most) * (HEIGHT - 4)]);
      }
    });
    if (piece.length) pieces.push(piece);
    const path = (points) => points.map(([x, y], index) => `${index ? "L" : "M"}${x} ${y.toFixed(2)}`).join("");
    line.trace.setAttribute("d", pieces.map((points) => path(points.length > 1 ? points : [points[0], points[0]])).join(""));
    const areas = pieces.map((points) => `${path(points)}L${points.at(-1)[0]} ${HEIGHT}L${points[0][0]} ${HEIGHT}Z`);
    line.area.setAttribute("d", areas.join(""));
  }

  /** What the lines were where the pointer is. */
  #read(event) {
    const list = this.#series[0] ?? [];
    this.#cursor.style.display = event && list.length ? "" : "none";
    this.#reading.textContent = "";
    if (!event || !list.length) return;
    const box = this.#svg.getBoundingClientRect();
    const slot = Math.round(((event.clientX - box.left) / box.width) * (this.#slots - 1));
    const index = slot - (this.#slots - list.length);
    this.#cursor.setAttribute("x1", slot);
    this.#cursor.setAttribute("x2", slot);
    if (index < 0 || index >= list.length) return;
    const values = this.#lines.map((line, number) => `${line.name} ${this.#options.format(this.#series[number][index])}`);
    this.#reading.textContent = `${list.length - 1 - index} s ago: ${values.join(", ")}`;
  }
}
