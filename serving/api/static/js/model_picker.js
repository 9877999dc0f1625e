// Which model answers. Remembers the choice while the server still offers it.

import { ChatError } from "./api_client.js";
import { element } from "./element.js";

export class ModelPicker {
  #select;
  #api;
  #settings;

  constructor(select, api, settings) {
    this.#select = select;
    this.#api = api;
    this.#settings = settings;
    select.addEventListener("change", () => settings.set("model", select.value));
    this.#offer([], "Loading models…");
  }

  /** The chosen model's id, or an empty string where the server has offered none yet. */
  get model() {
    return this.#select.value;
  }

  async load() {
    try {
      const ids = await this.#api.models();
      this.#offer(ids, "No models");
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      this.#offer([], error.status === 401 ? "API key needed" : "No models");
      this.#select.title = error.message;
    }
  }

  #offer(ids, emptyText) {
    const options = ids.map((id) => element("option", { value: id }, id));
    this.#select.replaceChildren(...(ids.length > 0 ? options : [element("option", { value: "" }, emptyText)]));
    this.#select.disabled = ids.length === 0;
    this.#select.title = "Model";
    const wanted = this.#settings.get("model");
    if (ids.includes(wanted)) this.#select.value = wanted;
  }
}
