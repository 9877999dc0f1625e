// An answer's text on screen. Only blocks that changed are rebuilt: while an answer streams that is the last one, so a
// long answer costs no more per frame than a short one, and a selection in a finished block survives.

import { blocksOf, fragmentOf } from "./markdown.js";

export class Prose {
  #root;
  #blocks = [];

  constructor(root) {
    this.#root = root;
  }

  update(text) {
    const blocks = blocksOf(text);
    blocks.forEach((block, index) => {
      if (this.#blocks[index] === block) return;
      const node = this.#root.children[index] ?? this.#root.appendChild(document.createElement("div"));
      node.className = "block";
      node.replaceChildren(fragmentOf(block));
    });
    while (this.#root.children.length > blocks.length) this.#root.lastElementChild.remove();
    this.#blocks = blocks;
  }

  get blockCount() {
    return this.#blocks.length;
  }

  /** The plain text of one block, as it would be read aloud. */
  spokenBlock(index) {
    const node = this.#root.children[index];
    return (node.querySelector("pre") ?? node).textContent.trim();
  }
}
