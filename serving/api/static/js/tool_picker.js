// Which of the server's tools the model may use: one button for each, below the message box.

import { ChatError } from "./api_client.js";
import { element, icon } from "./element.js";

const SETTING = "tools"; // the chosen ones' keys
const LABELS = {
  calculator: "Calculator",
  dates: "Dates",
  code_interpreter: "Code",
  web_search: "Web",
  web_fetch: "Web pages",
};
// What a request must say beside a tool's type, as in OpenAI's API.
const FACTS = { code_interpreter: { container: { type: "auto" } } };
const OF_FILES = "file_search"; // not chosen here: it comes with a file

/** Emits "loaded". */
export class ToolPicker extends EventTarget {
  #root;
  #api;
  #settings;
  #offered = [];

  constructor(root, api, settings) {
    super();
    this.#root = root;
    this.#api = api;
    this.#settings = settings;
    root.addEventListener("click", ({ target }) => {
      const button = target.closest("button");
      if (button) this.#toggle(button);
    });
  }

  async load() {
    try {
      this.#offered = await this.#api.tools();
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      this.#offered = []; // the model picker tells what is wrong with the server
    }
    this.#root.replaceChildren(...this.#offered.filter(({ type }) => type !== OF_FILES).map((tool) => this.#button(tool)));
    this.dispatchEvent(new Event("loaded"));
  }

  /** Whether files can be searched. */
  get readsFiles() {
    return this.#offered.some(({ type }) => type === OF_FILES);
  }

  /** As a request names them. */
  get chosen() {
    const keys = this.#settings.get(SETTING) ?? [];
    return this.#offered
      .filter((tool) => tool.type !== OF_FILES && keys.includes(keyOf(tool)))
      .map(({ type, server_label: label }) => ({ type, ...(label && { server_label: label }), ...FACTS[type] }));
  }

  #toggle(button) {
    const keys = new Set(this.#settings.get(SETTING) ?? []);
    const on = button.getAttribute("aria-pressed") !== "true";
    if (on) keys.add(button.dataset.key);
    else keys.delete(button.dataset.key);
    button.setAttribute("aria-pressed", String(on));
    this.#settings.set(SETTING, keys.size > 0 ? [...keys] : null);
  }

  #button(tool) {
    const key = keyOf(tool);
    const pressed = (this.#settings.get(SETTING) ?? []).includes(key);
    const title = tool.functions.map(({ name, description }) => `${name}: ${description}`).join("\n");
    return element("button.pill", { type: "button", title, "data-key": key, "aria-pressed": String(pressed) },
      icon("tool"), LABELS[tool.type] ?? tool.server_label ?? tool.type);
  }
}

function keyOf({ type, server_label: label }) {
  return label ? `${type}:${label}` : type;
}
