// Turns with tools that run on the server: its /v1/responses, told as a chat completion's chunks with more in them.
//
//   { choices }                                    a piece of the text, or the end, as in a chat completion
//   { call: { index, name, arguments, ... } }      what became known of the answer's call number `index`
//   { citation }                                   a passage that the text took something from
//   { mention }                                    a file of a program's that the text names
//   { whole: { content, toolCalls, citations, mentions, response } }   all of the answer, at its end, and its id at the server

import { ChatError, STREAM_HEADERS, brokenOff, failureOf } from "./api_client.js";
import { ofHeaders, ofLeftOut, told } from "./notices.js";

const CALLS = ["mcp_call", "code_interpreter_call", "file_search_call", "web_search_call"];
const NAMES = { code_interpreter_call: "code", file_search_call: "file search", web_search_call: "web search" };
const INCLUDE = ["file_search_call.results", "code_interpreter_call.outputs"];
const OTHER_NAMES = { max_tokens: "max_output_tokens" };
const BETWEEN_TEXTS = "\n\n"; // of one turn, with a call between them

export class ResponsesApi {
  kind = "response";
  #client;

  constructor(client) {
    this.#client = client;
  }

  /** The server's own tools, each { type, server_label?, functions }; none where it has no such list. Raises ChatError. */
  async tools() {
    try {
      return (await this.#client.json("/v1/tools")).data;
    } catch (error) {
      if (error instanceof ChatError && error.status === 404) return [];
      throw error;
    }
  }

  /**
   * As ChatApi's, of a request that may have `tools`, `user`, and `previous`: { response, messages }, the answer that the
   * question follows, and what is new since. Where the server has that no more, or it is another's, all messages are sent.
   */
  completion(request, place, signal, lost = () => {}) {
    return this.#client.answer({
      begin: () => this.#begin(request, signal),
      resume: () => {
        const include = INCLUDE.map((name) => `&include=${name}`).join("");
        return this.#client.fetch(`/v1/responses/${place.id}?stream=true${include}`, { headers: STREAM_HEADERS, signal, cache: "no-store" });
      },
      chunks: (response) => this.#chunks(response, place),
      place,
      signal,
      lost,
    });
  }

  async #begin({ previous, ...request }, signal) {
    const post = (body) => this.#client.post("/v1/responses", body, { headers: STREAM_HEADERS, signal });
    if (previous) {
      const body = { ...bodyOf(request), input: previous.messages, previous_response_id: previous.response };
      try {
        return await post(body);
      } catch (error) {
        const gone = error instanceof ChatError && (error.status === 404 || error.param === "previous_response_id");
        if (!gone) throw error;
      }
    }
    return post(bodyOf(request));
  }

  async cancel({ id }) {
    if (!id) return;
    try {
      await this.#client.fetch(`/v1/responses/${id}/cancel`, { method: "POST", keepalive: true });
    } catch (error) {
      if (!(error instanceof ChatError)) throw error; // it has ended meanwhile
    }
  }

  async *#chunks(response, place) {
    const turn = new TurnEvents();
    if (place.id) yield { whole: { content: "", reasoning: "", toolCalls: [], citations: [], mentions: [] } }; // it is told from its beginning again
    for await (const { chunk: event } of this.#client.events(response)) {
      if (event.type === "error") throw failureOf(event);
      if (event.type === "response.created") {
        place.id = event.response.id;
        yield { notices: ofHeaders(response.headers) };
      }
      if (event.queue) yield event;
      else yield* turn.chunks(event);
      if (event.response?.status && !["queued", "in_progress"].includes(event.response.status)) return;
    }
    throw brokenOff();
  }
}

function bodyOf({ messages, ...request }) {
  const instructions = messages[0]?.role === "system" ? messages[0].content : undefined;
  const fields = Object.entries(request).map(([name, value]) => [OTHER_NAMES[name] ?? name, value]);
  const input = messages.filter(({ role }) => role !== "system");
  return { ...Object.fromEntries(fields), instructions, input, include: INCLUDE, truncation: "auto", stream: true, background: true };
}

/** One response's events as chunks. */
class TurnEvents {
  #calls = new Map(); // output_index -> index among the calls
  #texts = 0;
  #thoughts = 0;

  *chunks(event) {
    switch (event.type) {
      case "response.output_item.added":
        if (CALLS.includes(event.item.type)) yield { call: this.#call(event) };
        else if (event.item.type === "message" && this.#texts++) yield piece(BETWEEN_TEXTS);
        else if (event.item.type === "reasoning" && this.#thoughts++) yield thought(BETWEEN_TEXTS);
        break;
      case "response.reasoning_text.delta":
        yield thought(event.delta);
        break;
      case "response.output_text.delta":
        yield piece(event.delta);
        break;
      case "response.mcp_call_arguments.delta":
      case "response.code_interpreter_call_code.delta":
        yield { call: { index: this.#index(event), more: event.delta } };
        break;
      case "response.output_item.done":
        if (CALLS.includes(event.item.type)) yield { call: this.#call(event) };
        break;
      case "response.output_text.annotation.added":
        yield isPassage(event.annotation) ? { citation: event.annotation } : { mention: fileOf(event.annotation) };
        break;
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        yield* endOf(event.response);
    }
  }

  #call(event) {
    return { index: this.#index(event), ...described(event.item) };
  }

  #index({ output_index: at }) {
    if (!this.#calls.has(at)) this.#calls.set(at, this.#calls.size);
    return this.#calls.get(at);
  }
}

function piece(content) {
  return { choices: [{ delta: { content } }] };
}

function thought(text) {
  return { choices: [{ delta: { reasoning_content: text } }] };
}

/** What a call's item says, as an answer keeps it: { name, arguments, state, result, files }. */
function described(item) {
  const result = {
    mcp_call: () => item.output ?? item.error?.content?.[0]?.text ?? null,
    code_interpreter_call: () => item.outputs?.map(({ logs }) => logs ?? "").join("\n") ?? null,
    file_search_call: () => item.results?.map(({ filename, text }) => `${filename}: ${text}`).join("\n\n") ?? null,
    web_search_call: () => null,
  }[item.type]();
  const asked = {
    mcp_call: () => item.arguments,
    code_interpreter_call: () => item.code ?? "",
    file_search_call: () => item.queries.join("\n"),
    web_search_call: () => item.action.url ?? item.action.query ?? "",
  }[item.type]();
  return { name: NAMES[item.type] ?? item.name, arguments: asked, state: item.status, result, files: filesOf(item) };
}

/** What a program wrote: { container, id, name, bytes, type } each. */
function filesOf({ files = [] }) {
  return files.map((file) => ({ ...fileOf(file), bytes: file.bytes, type: file.mime_type }));
}

function fileOf({ container_id, file_id, filename }) {
  return { container: container_id, id: file_id, name: filename };
}

/** Of files that searches found; those that programs wrote stand below their calls. */
function isPassage({ type }) {
  return type !== "container_file_citation";
}

function* endOf(response) {
  const messages = response.output.filter(({ type }) => type === "message");
  const annotations = messages.flatMap(({ content }) => content).flatMap((part) => part.annotations ?? []);
  yield {
    whole: {
      content: messages.map(({ content }) => content.map(({ text }) => text).join("")).join(BETWEEN_TEXTS),
      toolCalls: response.output.filter(({ type }) => CALLS.includes(type)).map(described),
      citations: annotations.filter(isPassage),
      mentions: annotations.filter((annotation) => !isPassage(annotation)).map(fileOf),
      response: response.id,
    },
    usage: response.usage && { completion_tokens: response.usage.output_tokens },
    detail: response.incomplete_details?.detail ?? null,
    notices: [...ofLeftOut(response.left_out), ...told(response.notices)],
  };
  if (response.status === "failed") throw failureOf(response.error);
  const reason = { completed: "stop", cancelled: "abort" }[response.status] ?? response.incomplete_details.reason;
  yield { choices: [{ delta: {}, finish_reason: reason === "max_output_tokens" ? "length" : reason }] };
}
