// What the server remembers of a user over conversations: /v1/memory. Raises ChatError where it refuses.

import { ChatError } from "./api_client.js";

const PATH = "/v1/memory";

export class MemoryApi {
  #client;

  constructor(client) {
    this.#client = client;
  }

  /** { enabled, strategy, data: [{ id, level, text, created_at }] }; null where this server has no memory. */
  async look(user) {
    try {
      return await this.#client.json(`${PATH}?${new URLSearchParams({ user })}`, { cache: "no-store" });
    } catch (error) {
      if (error instanceof ChatError && error.status === 404) return null;
      throw error;
    }
  }

  async switch(user, enabled) {
    return (await this.#client.post(PATH, { user, enabled })).json();
  }

  /** One entry, or without an `id` all of them. */
  async forget(user, id = null) {
    const query = new URLSearchParams({ user, ...(id !== null && { id }) });
    await this.#client.fetch(`${PATH}?${query}`, { method: "DELETE" });
  }
}
