// One answer while it is produced: sends the request, fills the answer message, measures. Its stream goes on without
// the page: `answer.stream` says where it can be taken up again.

import { ChatError } from "./api_client.js";

const SHORTEST_SPAN = 10; // ms between the first and the last token that a rate is worth showing for

export class Turn {
  #abort = new AbortController();
  #now;
  #sent = 0;
  #firstToken = null;
  #lastToken = null;
  #resumed;
  queue = null; // where it waits, { before, seconds }, until the first token

  /** `request` is null where the answer's stream is only taken up again. `answer` is the assistant message to fill; `conversation` the one it belongs to; `now()` gives milliseconds. */
  constructor(api, request, conversation, answer, now = () => performance.now()) {
    this.api = api;
    this.request = request;
    this.conversation = conversation;
    this.answer = answer;
    this.#now = now;
    this.#resumed = request === null;
  }

  /**
   * Runs to the end, whatever it is; calls `changed()` after each chunk, `opened()` with the first, and `lost()` where the
   * connection breaks. The answer then says how it ended; one whose stream is gone stays without an end.
   */
  async run(changed, { opened = () => {}, lost = () => {} } = {}) {
    const { answer } = this;
    let first = true;
    this.#sent = this.#now();
    answer.stream ??= { id: null, after: null, kind: this.api.kind };
    try {
      for await (const chunk of this.api.completion(this.request, answer.stream, this.#abort.signal, lost)) {
        this.#take(chunk);
        if (first) opened();
        first = false;
        changed();
      }
    } catch (error) {
      if (this.#resumed && error instanceof ChatError && error.status === 404) {
        answer.finishReason = null;
      } else if (error.name === "AbortError") {
        answer.finishReason = "abort";
      } else if (error instanceof ChatError) {
        answer.finishReason = "error";
        answer.error = { message: error.message, status: error.status, param: error.param, code: error.code, retryAfter: error.retryAfter };
      } else {
        answer.finishReason = "error";
        answer.error = { message: `The page failed: ${error.message}`, status: 0, param: null, retryAfter: null };
        throw error;
      }
    } finally {
      answer.stream = null;
      this.#measure(null);
    }
  }

  /** Ends the answer, here and at the server. */
  stop() {
    const place = { ...this.answer.stream };
    this.#abort.abort();
    return this.api.cancel(place);
  }

  #take(chunk) {
    const { answer } = this;
    if (chunk.call) this.#takeCall(chunk.call);
    if (chunk.citation) answer.citations.push(chunk.citation);
    if (chunk.mention) (answer.mentions ??= []).push(chunk.mention);
    if (chunk.id) answer.replyId = chunk.id;
    if (chunk.whole) Object.assign(answer, chunk.whole);
    if (chunk.detail) answer.detail = chunk.detail;
    if (chunk.notices?.length) answer.notices = withMore(answer.notices ?? [], chunk.notices);
    this.queue = chunk.queue ?? null;
    const choice = chunk.choices?.[0];
    if (choice?.delta) this.#takeDelta(choice.delta);
    if (choice?.finish_reason) this.answer.finishReason = choice.finish_reason;
    if (chunk.usage) this.#measure(chunk.usage);
  }

  #takeCall({ index, more, ...known }) {
    const call = (this.answer.toolCalls[index] ??= { name: "", arguments: "" });
    if (more) call.arguments += more;
    else Object.assign(call, known);
  }

  #takeDelta({ content, reasoning_content: reasoning, tool_calls: toolCalls }) {
    if (!content && !reasoning && !toolCalls?.length) return;
    this.#lastToken = this.#now();
    this.#firstToken ??= this.#lastToken;
    this.answer.content += content ?? "";
    if (reasoning) this.answer.reasoning = (this.answer.reasoning ?? "") + reasoning;
    for (const { index, function: part } of toolCalls ?? []) {
      const call = (this.answer.toolCalls[index] ??= { name: "", arguments: "" });
      call.name += part?.name ?? "";
      call.arguments += part?.arguments ?? "";
    }
  }

  /** Times are the page's own: the network and the browser are in them, as they are for the reader. */
  #measure(usage) {
    if (this.#firstToken === null || this.#resumed) return; // what came before a reload was not seen to come
    const stats = (this.answer.stats ??= { firstTokenMs: null, tokens: null, tokensPerSecond: null });
    stats.firstTokenMs = this.#firstToken - this.#sent;
    if (!usage) return;
    stats.tokens = usage.completion_tokens;
    // The first token belongs to the prefill; the rest were decoded between the first and the last arrival. Tokens that
    // came in one piece tell nothing of how fast they were made, nor do those of a turn in which tools ran.
    if (this.answer.toolCalls.some(({ state }) => state)) return;
    const span = this.#lastToken - this.#firstToken;
    if (stats.tokens > 1 && span >= SHORTEST_SPAN) stats.tokensPerSecond = (stats.tokens - 1) / (span / 1000);
  }
}

/** Each once: a stream that is told from its beginning again tells its notices again. */
function withMore(notices, more) {
  const known = new Set(notices.map(({ text }) => text));
  return [...notices, ...more.filter(({ text }) => !known.has(text))];
}
