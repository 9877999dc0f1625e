// The files that one program wrote, below its call: a button that saves each, and pictures as they are.

import { element, icon } from "./element.js";

export class FileLinks {
  #files;
  #shown = null;

  constructor(files) {
    this.#files = files;
    this.node = element("ul.tool-files", { "aria-label": "Files", hidden: true });
  }

  update(found) {
    const shown = JSON.stringify(found);
    if (this.#shown === shown) return;
    this.#shown = shown;
    this.node.hidden = found.length === 0;
    this.node.replaceChildren(...found.map((file) => this.#entry(file)));
  }

  #entry(file) {
    const save = element("button.button", { type: "button", "aria-label": `Save ${file.name}`, onclick: () => this.#files.save(file) },
      icon("file"), file.name, element("span.hint", {}, sizeOf(file.bytes)));
    const entry = element("li", {}, save);
    if (this.#files.isPicture(file)) whenSeen(entry, () => this.#show(entry, file));
    return entry;
  }

  async #show(entry, file) {
    const src = await this.#files.picture(file);
    if (src) entry.append(element("img", { src, alt: file.name }));
  }
}

/** Pictures of long conversations are fetched when the reader comes to them. */
function whenSeen(node, run) {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
    observer.disconnect();
    run();
  });
  observer.observe(node);
}

function sizeOf(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  return bytes < 1 << 20 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;
}
