// Requests to the server, and answers that outlive the connection that they began on.

import { eventsOf } from "./event_stream.js";
import { queueOf } from "./notices.js";

/** What went wrong, in words for a person. `status` is 0 where no answer came. */
export class ChatError extends Error {
  constructor(message, { status = 0, param = null, code = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.param = param;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/** A stream that broke off, and may go on elsewhere. */
export class LostStream extends ChatError {}

const GIVE_UP_MS = 120_000; // without a new chunk
const FIRST_WAIT_MS = 300;
const LONGEST_WAIT_MS = 5_000;
const MOVING = ["stream_moved", "server_stopping"]; // errors of a server that leaves its streams to another

/** Of a request whose answer is a stream: it says where it waits, too. */
export const STREAM_HEADERS = { Accept: "text/event-stream", "Weft-Queue": "show" };

const UNREACHABLE = "The server cannot be reached. It may be restarting, or the network is down.";

export class ApiClient {
  #key;

  /** `key()` returns the API key to send, or an empty string. */
  constructor(key) {
    this.#key = key;
  }

  /** The response, where the server does not refuse. Raises ChatError, and an AbortError when the signal fires. */
  async fetch(path, options = {}) {
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

  async json(path, options) {
    return (await this.fetch(path, options)).json();
  }

  post(path, body, options = {}) {
    const headers = { "Content-Type": "application/json", ...options.headers };
    return this.fetch(path, { method: "POST", body: JSON.stringify(body), ...options, headers });
  }

  /**
   * The chunks of one answer: `chunks(response)` yields those of one connection, and raises LostStream where it ends
   * before its last. A lost connection is made again. `place` is that of the answer, { id, after }: where it has an id
   * already, that answer is taken up by `resume()`, and otherwise begun by `begin()`. `lost()` is called for each loss.
   */
  async *answer({ begin, resume, chunks, place, signal, lost }) {
    let response = place.id ? await takenUp(resume, signal) : await begin();
    for (;;) {
      try {
        yield* chunks(response);
        return;
      } catch (error) {
        if (!(error instanceof LostStream) || !place.id) throw error;
      }
      lost();
      // A page that is left loses its streams too: it must be gone before it could ask for them in its successor's place.
      await pause(FIRST_WAIT_MS, signal);
      response = await takenUp(resume, signal);
    }
  }

  /** The events of a response's body as { id, chunk }; between them, where the request waits, as a chunk of { queue }. Raises LostStream where the connection breaks. */
  async *events(response) {
    try {
      for await (const { id = null, data, comment } of eventsOf(response.body)) {
        const queue = comment === undefined ? null : queueOf(comment);
        if (queue) yield { id, chunk: { queue } };
        else if (comment === undefined) yield { id, chunk: data === "[DONE]" ? null : JSON.parse(data) };
      }
    } catch (error) {
      if (error instanceof TypeError) throw new LostStream("The connection was lost in the middle of the answer.");
      if (error instanceof SyntaxError) throw new ChatError(`The server sent a chunk that is not JSON: ${error.message}`);
      throw error;
    }
  }
}

export function brokenOff() {
  return new LostStream("The server ended the answer early.");
}

export function failureOf({ message, param = null, code }) {
  return MOVING.includes(code) ? new LostStream(message, { param, code }) : new ChatError(message, { param, code });
}

/** What follows of a stream that broke off. A server that is away or starts is asked again. */
async function takenUp(resume, signal) {
  const giveUp = performance.now() + GIVE_UP_MS;
  for (let wait = FIRST_WAIT_MS; ; wait = Math.min(2 * wait, LONGEST_WAIT_MS)) {
    try {
      return await resume();
    } catch (error) {
      const away = error instanceof ChatError && [0, 502, 503, 504].includes(error.status);
      if (!away || performance.now() > giveUp) throw error;
    }
    await pause(wait, signal);
  }
}

/** Rejects with the signal's AbortError. */
export function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}

async function refusal(response) {
  const text = await response.text();
  const seconds = Number(response.headers.get("Retry-After"));
  const details = { status: response.status, retryAfter: seconds > 0 ? seconds : null };
  try {
    const { message, param, code } = JSON.parse(text).error;
    return new ChatError(message, { ...details, param, code });
  } catch (error) {
    // Not this API's error body: a proxy's page, say. The status line is then all there is.
    if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error;
    return new ChatError(`The server answered ${response.status} ${response.statusText}.`, details);
  }
}
