// The settings form. What is typed holds at once; what is out of range is refused with the reason and not kept.

import { element } from "./element.js";
import { SAMPLING_FIELDS } from "./settings.js";

export class SettingsDialog {
  #dialog;
  #settings;
  #inputs = new Map();

  constructor(dialog, settings) {
    this.#dialog = dialog;
    this.#settings = settings;
    const form = dialog.querySelector("form");
    form.querySelector("[data-slot=sampling]").replaceChildren(...SAMPLING_FIELDS.map((field) => this.#numberField(field)));
    this.#bindText(form.elements.system_prompt, (value) => settings.set("system_prompt", value));
    this.#bindText(form.elements.api_key, (value) => { settings.apiKey = value; });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.close();
    });
    form.querySelector("[data-action=reset]").addEventListener("click", () => {
      settings.reset();
      this.#fill();
    });
    dialog.querySelector("[data-action=close]").addEventListener("click", () => dialog.close());
  }

  open() {
    this.#fill();
    this.#dialog.showModal();
  }

  close() {
    this.#dialog.close();
  }

  #fill() {
    const { elements } = this.#dialog.querySelector("form");
    elements.system_prompt.value = this.#settings.get("system_prompt") ?? "";
    elements.api_key.value = this.#settings.apiKey;
    for (const [name, { input, refusal }] of this.#inputs) {
      input.value = this.#settings.get(name) ?? "";
      refusal.textContent = "";
      input.removeAttribute("aria-invalid");
    }
  }

  #bindText(input, store) {
    input.addEventListener("input", () => store(input.value.trim()));
  }

  #numberField({ name, label, min, max, step, hint }) {
    const id = `setting-${name}`;
    const input = element("input", {
      id, name, type: "number", inputmode: "decimal", min, max, step, placeholder: "default",
      "aria-describedby": `${id}-hint ${id}-refusal`,
    });
    const refusal = element("small.refusal", { id: `${id}-refusal`, role: "alert" });
    input.addEventListener("input", () => {
      const accepted = input.checkValidity();
      refusal.textContent = accepted ? "" : input.validationMessage;
      input.setAttribute("aria-invalid", String(!accepted));
      if (accepted) this.#settings.set(name, input.value === "" ? null : input.valueAsNumber);
    });
    this.#inputs.set(name, { input, refusal });
    return element("div.field", {},
      element("label", { for: id }, label),
      input,
      element("small.hint", { id: `${id}-hint` }, hint),
      refusal,
    );
  }
}
