// Server-sent events over fetch: EventSource can neither POST nor send headers.

/** An incremental parser of the event stream format: feed it text in any pieces, get whole events as { id, data }, and
 *  lines of the server's that are no event, but say something to those who listen, as `oncomment(text)`. */
export class EventStreamParser {
  #oncomment;
  #rest = "";
  #data = [];
  #id = null;

  constructor(oncomment = () => {}) {
    this.#oncomment = oncomment;
  }

  /** The events that this piece completes, in order; `id` is null for one that has none. */
  push(text) {
    const events = [];
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    // The last line may go on in the next piece; a final \r may be the first half of \r\n.
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length > 0) events.push({ id: this.#id, data: this.#data.join("\n") });
        this.#data = [];
        this.#id = null;
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      } else if (line.startsWith("id:")) {
        this.#id = line.slice(line[3] === " " ? 4 : 3);
      } else if (line.startsWith(":")) {
        this.#oncomment(line.slice(1));
      }
      // `event` and `retry` mean nothing to a chat completion.
    }
    return events;
  }
}

/** The events of a fetch body, and its comments as { comment }, each as soon as it is whole. Rejects as the body does: on abort or a lost connection. */
export async function* eventsOf(body) {
  const comments = [];
  const parser = new EventStreamParser((comment) => comments.push({ comment }));
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.push(value);
      yield* comments.splice(0);
    }
  } finally {
    reader.releaseLock();
  }
}
