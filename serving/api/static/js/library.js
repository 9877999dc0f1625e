// The files of the conversation that is open: a button that adds some, and one label for each.

import { ChatError } from "./api_client.js";
import { element, icon, iconButton } from "./element.js";

/** Emits "change" with the conversation as detail, and "failed" with a sentence. */
export class Library extends EventTarget {
  #list;
  #input;
  #api;
  #conversation = null;
  #uploads = new Map(); // conversation -> [{ name, done }]
  #stores = new WeakMap(); // conversation -> the promise of its store: two files at once are put into one

  constructor({ list, input, button, api }) {
    super();
    this.#list = list;
    this.#input = input;
    this.#api = api;
    button.addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      for (const file of input.files) this.#add(file);
      input.value = "";
    });
  }

  show(conversation) {
    this.#conversation = conversation;
    this.#draw();
  }

  /** What a request names, so that the model can search this conversation's files. */
  tools({ library }) {
    return library?.files.length > 0 ? [{ type: "file_search", vector_store_ids: [library.store] }] : [];
  }

  /** Returns when the open conversation's files have been read, or could not be, and those that expired are out. */
  async settled() {
    const conversation = this.#conversation;
    await Promise.all(this.#running().map(({ done }) => done));
    try {
      await this.#forgetExpired(conversation);
    } catch (error) {
      if (!(error instanceof ChatError)) throw error; // the question meets the same server, and says so
    }
  }

  #running() {
    return this.#uploads.get(this.#conversation) ?? [];
  }

  #add(file) {
    const conversation = this.#conversation;
    const upload = { name: file.name, done: null };
    this.#uploads.set(conversation, [...this.#running(), upload]);
    upload.done = this.#read(conversation, file).finally(() => {
      this.#uploads.set(conversation, this.#uploads.get(conversation).filter((other) => other !== upload));
      this.#draw();
    });
    this.#draw();
  }

  async #read(conversation, file) {
    try {
      const library = await this.#libraryOf(conversation);
      library.files.push({ id: await this.#api.add(library.store, file), name: file.name });
      this.#changed(conversation);
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
      this.dispatchEvent(new CustomEvent("failed", { detail: `${file.name}: ${error.message}` }));
    }
  }

  async #forgetExpired(conversation) {
    const { library } = conversation;
    if (!library) return;
    const held = await this.#api.held(library.store, library.files.map(({ id }) => id));
    const gone = library.files.filter(({ id }) => !held?.includes(id));
    if (held && gone.length === 0) return;
    library.files = library.files.filter((file) => !gone.includes(file));
    if (!held) {
      delete conversation.library; // the next file begins another store
      this.#stores.delete(conversation);
    }
    this.#changed(conversation);
    this.#draw();
    const names = gone.map(({ name }) => name).join(", ");
    if (names) this.dispatchEvent(new CustomEvent("failed", { detail: `No longer on the server, attach again: ${names}` }));
  }

  async #libraryOf(conversation) {
    if (this.#running().length === 1) await this.#forgetExpired(conversation); // no other is on its way into the store
    if (!conversation.library) {
      if (!this.#stores.has(conversation)) this.#stores.set(conversation, this.#api.begin(conversation.id));
      try {
        const store = await this.#stores.get(conversation);
        conversation.library ??= { store, files: [] };
      } catch (error) {
        this.#stores.delete(conversation);
        throw error;
      }
    }
    return conversation.library;
  }

  async #remove(file) {
    const conversation = this.#conversation;
    const { library } = conversation;
    library.files = library.files.filter(({ id }) => id !== file.id);
    this.#changed(conversation);
    this.#draw();
    await this.#api.remove(file.id);
  }

  #changed(conversation) {
    this.dispatchEvent(new CustomEvent("change", { detail: conversation }));
  }

  #draw() {
    const files = this.#conversation?.library?.files ?? [];
    this.#list.replaceChildren(
      ...files.map((file) => element("li.file", {}, icon("file"), element("span", {}, file.name),
        iconButton("close", `Remove ${file.name}`, { onclick: () => this.#remove(file) }))),
      ...this.#running().map(({ name }) => element("li.file.reading", { "aria-busy": "true" }, icon("file"), element("span", {}, name), "reading…")),
    );
    this.#list.hidden = this.#list.children.length === 0;
  }
}
