// Conversations in localStorage, one key each, so that two tabs do not overwrite each other's.

import { branched } from "./branches.js";

const PREFIX = "weft.conversation.";

/** Emits "change" when a conversation is saved, renamed or deleted, here or in another tab, and "full" on a full disk. */
export class ConversationStore extends EventTarget {
  #storage;
  #conversations = new Map();

  constructor(storage = localStorage) {
    super();
    this.#storage = storage;
    for (const key of Object.keys(storage).filter((name) => name.startsWith(PREFIX))) {
      this.#read(key, storage.getItem(key));
    }
    addEventListener("storage", ({ key, newValue }) => {
      if (!key?.startsWith(PREFIX)) return;
      this.#read(key, newValue);
      this.#changed();
    });
  }

  /** Newest first. */
  list() {
    return [...this.#conversations.values()].sort((a, b) => b.updated - a.updated);
  }

  get(id) {
    return this.#conversations.get(id);
  }

  save(conversation) {
    this.#conversations.set(conversation.id, conversation);
    this.#write(conversation);
    this.#changed();
  }

  rename(id, title) {
    const conversation = this.#required(id);
    conversation.title = title;
    this.save(conversation);
  }

  delete(id) {
    const conversation = this.#required(id);
    this.#conversations.delete(id);
    this.#storage.removeItem(PREFIX + id);
    this.#changed();
    return conversation;
  }

  #required(id) {
    const conversation = this.get(id);
    if (!conversation) throw new Error(`no conversation ${id}`);
    return conversation;
  }

  #write(conversation) {
    try {
      this.#storage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
    } catch (error) {
      if (error.name !== "QuotaExceededError") throw error;
      this.dispatchEvent(new Event("full"));
    }
  }

  #read(key, text) {
    const id = key.slice(PREFIX.length);
    if (text === null) this.#conversations.delete(id);
    else this.#conversations.set(id, branched(JSON.parse(text)));
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}
