// A short note at the bottom of the page, with one thing to do about it at most.

import { element } from "./element.js";

const SHOWN_MS = 7000;

export class Toast {
  #region;
  #timer = null;

  constructor(region) {
    this.#region = region;
  }

  show(text, action = null) {
    const button = action && element("button.button", { type: "button", onclick: () => this.#act(action) }, action.label);
    this.#region.replaceChildren(element("div.toast", {}, element("span", {}, text), ...(button ? [button] : [])));
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#region.replaceChildren(), SHOWN_MS);
  }

  #act(action) {
    this.#region.replaceChildren();
    action.run();
  }
}
