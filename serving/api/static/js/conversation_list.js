// The sidebar's list: open, rename in place, export, delete.

import { element, iconButton } from "./element.js";
import { matches } from "./conversation.js";

const DAY = 24 * 60 * 60 * 1000;

/** Emits "open", "export" and "delete" with an id as detail, and "rename" with { id, title }. */
export class ConversationList extends EventTarget {
  #root;
  #store;
  #search;
  #currentId = null;
  #renaming = null;

  constructor({ root, search, store }) {
    super();
    this.#root = root;
    this.#store = store;
    this.#search = search;
    search.addEventListener("input", () => this.render());
    store.addEventListener("change", () => this.render());
  }

  set currentId(id) {
    this.#currentId = id;
    this.render();
  }

  render() {
    if (this.#renaming) return; // a stream that ends elsewhere must not take the input from under the fingers
    const found = this.#store.list().filter((conversation) => matches(conversation, this.#search.value));
    const groups = Map.groupBy(found, ({ updated }) => ageOf(updated));
    const sections = [...groups].map(([age, conversations]) =>
      element("section", { "aria-label": age },
        element("h3.group", {}, age),
        element("ul", {}, ...conversations.map((conversation) => this.#row(conversation))),
      ));
    const note = this.#search.value ? "Nothing found." : "Conversations are kept in this browser only.";
    const focused = this.#focusedButton();
    this.#root.replaceChildren(...(sections.length > 0 ? sections : [element("p.list-note", {}, note)]));
    if (focused) this.#root.querySelectorAll(`[data-id="${focused.id}"] button`)[focused.index]?.focus();
  }

  #focusedButton() {
    const row = this.#root.contains(document.activeElement) ? document.activeElement.closest(".row") : null;
    return row && { id: row.dataset.id, index: [...row.querySelectorAll("button")].indexOf(document.activeElement) };
  }

  #row(conversation) {
    const { id, title } = conversation;
    const emit = (name) => () => this.#emit(name, id);
    const current = id === this.#currentId;
    const row = element("li.row", { "data-id": id },
      element("button.row-title", { type: "button", title, "aria-current": current && "page", onclick: emit("open") }, title),
      element("span.row-actions", {},
        iconButton("pencil", `Rename ${title}`, { onclick: () => this.#rename(conversation, row) }),
        iconButton("download", `Export ${title} as JSON`, { onclick: emit("export") }),
        iconButton("trash", `Delete ${title}`, { onclick: emit("delete") }),
      ),
    );
    row.classList.toggle("current", current);
    return row;
  }

  #rename({ id, title }, row) {
    const input = element("input.rename", { type: "text", "aria-label": "New title", maxlength: "120" });
    input.value = title;
    this.#renaming = input;
    const finish = (save) => {
      if (this.#renaming !== input) return; // removing the input blurs it
      this.#renaming = null;
      const renamed = input.value.trim();
      if (save && renamed && renamed !== title) this.#emit("rename", { id, title: renamed });
      this.render();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.stopPropagation();
      event.preventDefault();
      finish(event.key === "Enter");
      this.#root.querySelector(`[data-id="${id}"] .row-title`)?.focus();
    });
    input.addEventListener("blur", () => finish(true));
    row.replaceChildren(input);
    input.select();
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

function ageOf(time) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (time >= today) return "Today";
  if (time >= today - DAY) return "Yesterday";
  return time >= today - 7 * DAY ? "Last seven days" : "Older";
}
