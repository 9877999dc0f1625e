// Chat completions, the models and the server's state.

import { ChatError, STREAM_HEADERS, brokenOff, failureOf } from "./api_client.js";
import { ofChunk, ofHeaders } from "./notices.js";

export class ChatApi {
  kind = "completion"; // which API an answer's stream is of
  #client;

  constructor(client) {
    this.#client = client;
  }

  /** The ids of the models that the server offers. Raises ChatError. */
  async models() {
    const { data } = await this.#client.json("/v1/models");
    return data.map((model) => model.id);
  }

  /** "ready", "starting" (the server answers, the engine does not yet) or "offline". */
  async readiness() {
    try {
      const response = await fetch("/health/ready", { cache: "no-store" });
      return response.ok ? "ready" : "starting";
    } catch (error) {
      if (error instanceof TypeError) return "offline";
      throw error;
    }
  }

  /**
   * Streams one chat completion: yields the parsed chunks and returns after `[DONE]`. A lost connection is made again,
   * and the answer goes on where it was. `place` is that of the answer, { id, after }: it is kept up to date, and where
   * it has an id already, that stream is taken up and `request` is not sent. `lost()` is called for each loss.
   * Raises ChatError where the server refuses, reports an error mid-stream, or the stream cannot be taken up again; an
   * AbortError when `signal` fires.
   */
  completion(request, place, signal, lost = () => {}) {
    const body = { ...request, stream: true, durable: true, stream_options: { include_usage: true } };
    return this.#client.answer({
      begin: () => this.#client.post("/v1/chat/completions", body, { headers: STREAM_HEADERS, signal }),
      resume: () => {
        const headers = { ...STREAM_HEADERS, "Last-Event-ID": place.after ?? "0" };
        return this.#client.fetch(`/v1/streams/${place.id}`, { headers, signal, cache: "no-store" });
      },
      chunks: (response) => this.#chunks(response, place),
      place,
      signal,
      lost,
    });
  }

  /** Ends a stream for all who read it. */
  async cancel({ id }) {
    if (!id) return; // a request that was never answered ends with its connection
    try {
      await this.#client.fetch(`/v1/streams/${id}`, { method: "DELETE", keepalive: true });
    } catch (error) {
      if (!(error instanceof ChatError)) throw error; // it is gone, or ends by itself when nobody reads it
    }
  }

  async *#chunks(response, place) {
    place.id ??= response.headers.get("X-Weft-Stream-Id");
    yield { notices: ofHeaders(response.headers) };
    for await (const { id, chunk } of this.#client.events(response)) {
      if (chunk === null) return;
      if (chunk.error) throw failureOf(chunk.error);
      yield { ...chunk, notices: ofChunk(chunk) };
      place.after = id ?? place.after; // what has been taken
    }
    throw brokenOff();
  }
}
