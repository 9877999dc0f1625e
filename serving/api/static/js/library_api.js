// Files that the server reads, so that the model can search them.

import { ChatError, pause } from "./api_client.js";

const LOOK_MS = 400;
const KEPT_DAYS = 7; // a store, after the last search
const FILE_SECONDS = 30 * 24 * 3600; // a file, after its upload: the longest that the server takes
const PURPOSE = "assistants";

export class LibraryApi {
  #client;

  constructor(client) {
    this.#client = client;
  }

  /** A new vector store's id. Raises ChatError, as all of these do. */
  async begin(name) {
    const body = { name, expires_after: { anchor: "last_active_at", days: KEPT_DAYS } };
    return (await (await this.#client.post("/v1/vector_stores", body)).json()).id;
  }

  /** Uploads a file into the store and returns its id once it has been read. */
  async add(store, file) {
    const form = new FormData();
    form.set("purpose", PURPOSE);
    form.set("expires_after[anchor]", "created_at");
    form.set("expires_after[seconds]", FILE_SECONDS);
    form.set("file", file, file.name);
    const { id } = await this.#client.json("/v1/files", { method: "POST", body: form });
    try {
      await this.#read(store, id, file.name);
    } catch (error) {
      await this.remove(id); // nobody would: it is in no list of the page's
      throw error;
    }
    return id;
  }

  /** Of these files' ids, those that the store still has; null where it has expired, or is gone. */
  async held(store, ids) {
    const path = `/v1/vector_stores/${store}`;
    try {
      const { status, file_counts: counts } = await this.#client.json(path);
      if (status === "expired") return null;
      if (counts.total >= ids.length) return ids;
      const held = new Set();
      let page;
      do {
        const after = page ? `&after=${page.last_id}` : "";
        page = await this.#client.json(`${path}/files?limit=100${after}`);
        for (const { id } of page.data) held.add(id);
      } while (page.has_more);
      return ids.filter((id) => held.has(id));
    } catch (error) {
      if (error.status === 404) return null;
      throw error;
    }
  }

  /** Out of its store too. Where the server does not do it now, the file expires there. */
  async remove(id) {
    try {
      await this.#client.fetch(`/v1/files/${id}`, { method: "DELETE" });
    } catch (error) {
      if (!(error instanceof ChatError)) throw error;
    }
  }

  async #read(store, id, name) {
    let state = await (await this.#client.post(`/v1/vector_stores/${store}/files`, { file_id: id })).json();
    while (state.status === "in_progress") {
      await pause(LOOK_MS);
      state = await this.#client.json(`/v1/vector_stores/${store}/files/${id}`);
    }
    if (state.status !== "completed") throw new ChatError(state.last_error?.message ?? `The server did not read ${name}.`);
  }
}
