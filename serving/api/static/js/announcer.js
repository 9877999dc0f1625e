// What a screen reader is told. A polite log: each addition waits for the one before it.

import { element } from "./element.js";

const KEPT = 20;

export class Announcer {
  #log;

  constructor(log) {
    this.#log = log;
  }

  say(text) {
    if (!text) return;
    this.#log.append(element("p", {}, text));
    while (this.#log.children.length > KEPT) this.#log.firstElementChild.remove();
  }
}
