// The memory, to look at, to forget from, to switch off.

import { ChatError } from "./api_client.js";
import { element, iconButton } from "./element.js";

export class MemoryDialog {
  #dialog;
  #memory;
  #switch;
  #list;
  #note;
  #failure;
  #forget;

  constructor(dialog, memory) {
    this.#dialog = dialog;
    this.#memory = memory;
    const slot = (name) => dialog.querySelector(`[data-slot=${name}]`);
    this.#switch = dialog.querySelector("[role=switch]");
    [this.#list, this.#note, this.#failure] = ["entries", "note", "failure"].map(slot);
    this.#forget = dialog.querySelector("[data-action=forget]");
    this.#switch.addEventListener("change", () => this.#do(() => memory.switch(this.#switch.checked)));
    this.#forget.addEventListener("click", () => this.#forgetAll());
    dialog.querySelector("[data-action=close]").addEventListener("click", () => dialog.close());
  }

  async open() {
    this.#dialog.showModal();
    await this.#do(() => {});
  }

  /** Does it, and shows how the memory is then. */
  async #do(operation) {
    this.#ask(false);
    try {
      await operation();
      this.#show(await this.#memory.look());
      this.#failure.textContent = "";
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      this.#failure.textContent = error.message;
      this.#switch.checked = this.#memory.user !== null;
    }
  }

  #show(found) {
    const entries = found?.data ?? [];
    this.#switch.disabled = found === null;
    this.#switch.checked = found?.enabled ?? false;
    this.#list.replaceChildren(...entries.map((entry) => this.#entry(entry)));
    this.#forget.hidden = entries.length === 0;
    this.#note.textContent = noteOf(found);
    this.#note.hidden = this.#note.textContent === "";
  }

  #entry({ id, level, text, created_at: created }) {
    const when = new Date(created * 1000).toLocaleDateString(undefined, { dateStyle: "medium" });
    return element("li.memory-entry", {},
      element("small.hint", {}, level > 0 ? `Summary, ${when}` : when),
      iconButton("trash", "Forget this", { onclick: () => this.#do(() => this.#memory.forget(id)) }),
      element("p", {}, text),
    );
  }

  /** Asked once more first: it cannot be undone. */
  async #forgetAll() {
    if (!this.#forget.classList.contains("danger")) this.#ask(true);
    else await this.#do(() => this.#memory.forget());
  }

  #ask(sure) {
    this.#forget.classList.toggle("danger", sure);
    this.#forget.textContent = sure ? "Really forget everything?" : "Forget everything";
  }
}

function noteOf(found) {
  if (found === null) return "This server has no memory.";
  if (found.strategy === "window") return "This server keeps nothing: its memory is the conversation alone.";
  if (found.data.length > 0) return "";
  return found.enabled ? "Nothing yet. What you say in a chat is here after its answer." : "Nothing is remembered.";
}
