// Server-sent events over fetch: EventSource can neither POST nor send headers.

/** An incremental parser of the event stream format: feed it text in any pieces, get whole `data` payloads. */
export class EventStreamParser {
  #rest = "";
  #data = [];

  /** The payloads that this piece completes, in order. */
  push(text) {
    const payloads = [];
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    // The last line may go on in the next piece; a final \r may be the first half of \r\n.
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length > 0) payloads.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      }
      // Comments keep the connection alive; `event`, `id` and `retry` mean nothing to a chat completion.
    }
    return payloads;
  }
}

/** The payloads of a fetch body, each as soon as it is whole. Rejects as the body does: on abort or a lost connection. */
export async function* payloadsOf(body) {
  const parser = new EventStreamParser();
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(value);
    }
  } finally {
    reader.releaseLock();
  }
}
