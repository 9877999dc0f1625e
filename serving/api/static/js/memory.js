// Whether this browser's user lets the server remember what they say. Nobody is named to the server before they do.

import { randomId } from "./random_id.js";

const KEY = "weft.memory";

/** Emits "change" when it is switched on or off. Its operations raise ChatError. */
export class Memory extends EventTarget {
  #api;
  #kept = JSON.parse(localStorage.getItem(KEY) ?? "null") ?? { user: randomId(), on: false };

  constructor(api) {
    super();
    this.#api = api;
  }

  /** As whom requests are sent; null where nothing is to be remembered. */
  get user() {
    return this.#kept.on ? this.#kept.user : null;
  }

  /** What is remembered, newest first; null where this server has no memory. */
  async look() {
    const found = await this.#api.look(this.#kept.user);
    return found && { ...found, enabled: found.enabled && this.#kept.on, data: found.data.toReversed() };
  }

  async switch(on) {
    await this.#api.switch(this.#kept.user, on);
    this.#kept = { ...this.#kept, on };
    localStorage.setItem(KEY, JSON.stringify(this.#kept));
    this.dispatchEvent(new Event("change"));
  }

  /** One entry, or without an `id` all of them. */
  forget(id = null) {
    return this.#api.forget(this.#kept.user, id);
  }
}
