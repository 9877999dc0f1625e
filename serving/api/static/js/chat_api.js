// The server's HTTP interface, as far as the page uses it.

import { payloadsOf } from "./event_stream.js";

/** What went wrong, in words for a person. `status` is 0 where no answer came. */
export class ChatError extends Error {
  constructor(message, { status = 0, param = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

const UNREACHABLE = "The server cannot be reached. It may be restarting, or the network is down.";

export class ChatApi {
  #key;

  /** `key()` returns the API key to send, or an empty string. */
  constructor(key) {
    this.#key = key;
  }

  /** The ids of the models that the server offers. Raises ChatError. */
  async models() {
    const response = await this.#fetch("/v1/models");
    const { data } = await response.json();
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
   * Streams one chat completion: yields the parsed chunks and returns after `[DONE]`.
   * Raises ChatError where the server refuses, reports an error mid-stream, or the stream is cut; an AbortError when
   * `signal` fires.
   */
  async *completion(request, signal) {
    const response = await this.#fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
      body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
    try {
      for await (const payload of payloadsOf(response.body)) {
        if (payload === "[DONE]") return;
        const chunk = JSON.parse(payload);
        if (chunk.error) throw new ChatError(chunk.error.message, { param: chunk.error.param });
        yield chunk;
      }
    } catch (error) {
      if (error instanceof TypeError) throw new ChatError("The connection was lost in the middle of the answer.");
      if (error instanceof SyntaxError) throw new ChatError(`The server sent a chunk that is not JSON: ${error.message}`);
      throw error;
    }
    throw new ChatError("The server ended the answer early.");
  }

  async #fetch(path, options = {}) {
    const headers = { ...options.headers };
    if (this.#key()) headers.Authorization = `Bearer ${this.#key()}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error instanceof TypeError) throw new ChatError(UNREACHABLE);
      throw error;
    }
    if (!response.ok) throw await refusal(response);
    return response;
  }
}

async function refusal(response) {
  const text = await response.text();
  const seconds = Number(response.headers.get("Retry-After"));
  const details = { status: response.status, retryAfter: seconds > 0 ? seconds : null };
  try {
    const { message, param } = JSON.parse(text).error;
    return new ChatError(message, { ...details, param });
  } catch (error) {
    // Not this API's error body: a proxy's page, say. The status line is then all there is.
    if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error;
    return new ChatError(`The server answered ${response.status} ${response.statusText}.`, details);
  }
}
