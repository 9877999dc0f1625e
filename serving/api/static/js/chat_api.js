// The server's HTTP interface, as far as the page uses it.

import { eventsOf } from "./event_stream.js";

/** What went wrong, in words for a person. `status` is 0 where no answer came. */
export class ChatError extends Error {
  constructor(message, { status = 0, param = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

/** A stream that broke off, and may go on elsewhere. */
class LostStream extends ChatError {}

const GIVE_UP_MS = 120_000; // without a new chunk
const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 5_000;
const MOVING = ["stream_moved", "server_stopping"]; // errors of a server that leaves its streams to another

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
   * Streams one chat completion: yields the parsed chunks and returns after `[DONE]`. A lost connection is made again,
   * and the answer goes on where it was. `place` is that of the answer, { id, after }: it is kept up to date, and where
   * it has an id already, that stream is taken up and `request` is not sent. `lost()` is called for each loss.
   * Raises ChatError where the server refuses, reports an error mid-stream, or the stream cannot be taken up again; an
   * AbortError when `signal` fires.
   */
  async *completion(request, place, signal, lost = () => {}) {
    let response = place.id ? await this.#takeUp(place, signal) : await this.#begin(request, signal);
    place.id ??= response.headers.get("X-Weft-Stream-Id");
    for (;;) {
      try {
        yield* this.#chunks(response.body, place);
        return;
      } catch (error) {
        if (!(error instanceof LostStream) || !place.id) throw error;
      }
      lost();
      // A page that is left loses its streams too: it must be gone before it could ask for them in its successor's place.
      await pause(FIRST_WAIT_MS, signal);
      response = await this.#takeUp(place, signal);
    }
  }

  /** Ends a stream for all who read it. */
  async cancel({ id }) {
    if (!id) return; // a request that was never answered ends with its connection
    try {
      await this.#fetch(`/v1/streams/${id}`, { method: "DELETE", keepalive: true });
    } catch (error) {
      if (!(error instanceof ChatError)) throw error; // it is gone, or ends by itself when nobody reads it
    }
  }

  #begin(request, signal) {
    return this.#fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
      body: JSON.stringify({ ...request, stream: true, durable: true, stream_options: { include_usage: true } }),
      signal,
    });
  }

  /** What follows of a stream that broke off. A server that is away or starts is asked again. */
  async #takeUp(place, signal) {
    const giveUp = performance.now() + GIVE_UP_MS;
    for (let wait = FIRST_WAIT_MS; ; wait = Math.min(2 * wait, LONGEST_WAIT_MS)) {
      try {
        const headers = { Accept: "text/event-stream", "Last-Event-ID": place.after ?? "0" };
        return await this.#fetch(`/v1/streams/${place.id}`, { headers, signal, cache: "no-store" });
      } catch (error) {
        const away = error instanceof ChatError && [0, 502, 503, 504].includes(error.status);
        if (!away || performance.now() > giveUp) throw error;
      }
      await pause(wait, signal);
    }
  }

  async *#chunks(body, place) {
    try {
      for await (const { id, data } of eventsOf(body)) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw failureOf(chunk.error);
        yield chunk;
        place.after = id; // what has been taken
      }
    } catch (error) {
      if (error instanceof TypeError) throw new LostStream("The connection was lost in the middle of the answer.");
      if (error instanceof SyntaxError) throw new ChatError(`The server sent a chunk that is not JSON: ${error.message}`);
      throw error;
    }
    throw new LostStream("The server ended the answer early.");
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

function failureOf({ message, param, code }) {
  return MOVING.includes(code) ? new LostStream(message, { param }) : new ChatError(message, { param });
}

/** Rejects with the signal's AbortError. */
function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
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
