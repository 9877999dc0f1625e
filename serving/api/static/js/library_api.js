// Files that the server reads, so that the model can search them.

import { ChatError, pause } from "./api_client.js";

const LOOK_MS = 400;
const KEPT_DAYS = 7; // after the last search
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
    form.set("file", file, file.name);
    const { id } = await this.#client.json("/v1/files", { method: "POST", body: form });
    let state = await (await this.#client.post(`/v1/vector_stores/${store}/files`, { file_id: id })).json();
    while (state.status === "in_progress") {
      await pause(LOOK_MS);
      state = await this.#client.json(`/v1/vector_stores/${store}/files/${id}`);
    }
    if (state.status !== "completed") throw new ChatError(state.last_error?.message ?? `The server did not read ${file.name}.`);
    return id;
  }

  async remove(store, id) {
    await this.#client.fetch(`/v1/vector_stores/${store}/files/${id}`, { method: "DELETE" });
    await this.#client.fetch(`/v1/files/${id}`, { method: "DELETE" });
  }
}
