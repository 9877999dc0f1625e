// The batch as a piece of cloth: a cell for each stream that can run at once, woven where one runs.

const MOST_CELLS = 256;
const COLUMNS = [8, 16, 32];

export class Fabric {
  #place;

  constructor(place) {
    this.#place = place;
  }

  /** Beyond MOST_CELLS a cell stands for several streams. */
  draw(running, limit) {
    const cells = Math.min(limit ?? running ?? 0, MOST_CELLS);
    const share = limit ? cells / limit : 1;
    const woven = Math.ceil((running ?? 0) * share);
    while (this.#place.children.length > cells) this.#place.lastChild.remove();
    while (this.#place.children.length < cells) this.#place.append(document.createElement("i"));
    const columns = COLUMNS.find((most) => cells <= most * most) ?? COLUMNS.at(-1);
    this.#place.style.setProperty("--columns", Math.max(1, Math.min(columns, cells)));
    [...this.#place.children].forEach((cell, index) => {
      cell.classList.toggle("on", index < woven);
      cell.classList.toggle("under", ((index % columns) + Math.floor(index / columns)) % 2 === 1);
    });
    this.#place.setAttribute("aria-label", `${running ?? 0} of ${limit ?? "an unknown number of"} streams run`);
  }
}
