// The passage that an answer took something from, as it stands in its file.

import { element } from "./element.js";

export class PassageDialog {
  #dialog;

  constructor(dialog) {
    this.#dialog = dialog;
    dialog.querySelector("[data-action=close]").addEventListener("click", () => dialog.close());
  }

  open({ filename, page, quote, start, end }) {
    const where = [page && `page ${page}`, start !== undefined && `characters ${start} to ${end}`].filter(Boolean).join(", ");
    this.#dialog.querySelector("h2").textContent = filename;
    this.#dialog.querySelector("[data-slot=passage]").replaceChildren(
      element("p.hint", {}, where),
      element("blockquote.passage", {}, quote ?? "The server gave no text of it."),
    );
    this.#dialog.showModal();
  }
}
