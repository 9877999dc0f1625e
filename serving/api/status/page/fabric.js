// The batch as a piece of cloth: a cell for each stream that can run at once, woven where one runs.

const MOST_CELLS = 256;

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
    this.#place.style.setProperty("--cell", cells > 96 ? "0.7rem" : cells > 40 ? "1rem" : "1.5rem");
    [...this.#place.children].forEach((cell, index) => cell.classList.toggle("on", index < woven));
    this.#place.setAttribute("aria-label", `${running ?? 0} of ${limit ?? "an unknown number of"} streams run`);
  }
}
