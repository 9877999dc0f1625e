// One message on screen. Buttons carry `data-action`; the transcript acts on them.

import { element, icon, iconButton } from "./element.js";
import { FileLinks } from "./file_links.js";
import { NoticeList } from "./notice_list.js";
import { wordsOfQueue } from "./notices.js";
import { Prose } from "./prose.js";
import { VersionSwitch } from "./version_switch.js";

const ENDINGS = {
  length: "Cut at the token limit. A higher limit is in the settings.",
  abort: "Stopped before the end.",
  content_filter: "Cut by the server's content policy.",
  repeated_call: "Ended: the model made one call again and again.",
  tool_rounds: "Ended: the model went on calling tools.",
  max_tool_calls: "Ended: the model made more calls than a turn may have.",
  time_budget: "Ended: the turn took longer than it may.",
  timeout: "Ended: its time was over.",
};
const FAILURES = {
  content_filter: "The server's content policy blocked this message.",
  moderation_unavailable: "The server could not check this against its content policy, and so did not answer.",
};
const RATINGS = { up: "Good answer", down: "Bad answer" };
const STATES = { completed: "", failed: "failed", incomplete: "broken off" }; // of a call; any other is still running

const SHORT_RESULT = 300; // characters that are shown without being asked for

/** `files` saves and shows what programs wrote. */
export function viewOf(message, files) {
  return message.role === "user" ? new UserView(message) : new AnswerView(message, files);
}

class UserView {
  constructor(message) {
    this.edit = iconButton("pencil", "Edit this message", { "data-action": "edit" });
    this.versions = new VersionSwitch("Versions of this message");
    this.node = element("article.message.user", { "aria-label": "You" },
      element("div.bubble", {}, message.content),
      element("div.actions", {}, iconButton("copy", "Copy this message", { "data-action": "copy" }), this.edit),
      this.versions.node,
    );
  }

  update(place) {
    this.edit.disabled = place.busy;
    this.versions.update(place);
  }
}

class AnswerView {
  #message;
  #files;
  #shown = null;
  #links = []; // of the calls

  constructor(message, files) {
    this.#message = message;
    this.#files = files;
    this.thoughts = element("pre", { tabindex: "0" });
    this.reasoning = element("details.reasoning", { hidden: true }, element("summary", {}, "Reasoning"), this.thoughts);
    this.calls = element("div.tool-calls");
    const text = element("div.prose");
    this.prose = new Prose(text);
    this.queue = element("span.queue"); // the announcer reads it out
    this.waiting = element("div.waiting", {},
      element("span.threads", { role: "img", "aria-label": "Waiting for the first token" }, element("i"), element("i"), element("i")),
      this.queue);
    this.failure = element("div.failure", { role: "alert" });
    this.citations = element("div.citations", { "aria-label": "Sources" });
    this.notices = new NoticeList();
    this.ending = element("p.ending");
    this.stats = element("span.stats");
    this.copy = iconButton("copy", "Copy this answer", { "data-action": "copy" });
    this.again = iconButton("refresh", "Answer again", { "data-action": "regenerate" });
    this.thumbs = ["up", "down"].map((rating) => iconButton(`thumb-${rating}`, RATINGS[rating], { "data-action": "rate", "data-rating": rating }));
    this.versions = new VersionSwitch("Versions of this answer");
    this.footer = element("footer.footer", {},
      this.versions.node, element("div.actions", {}, this.copy, this.again, ...this.thumbs), this.stats);
    this.node = element("article.message.assistant", { "aria-label": "Answer" },
      this.reasoning, this.calls, text, this.waiting, this.citations, this.notices.node, this.ending, this.failure, this.footer);
  }

  update({ isLast, streaming, queue, ...place }) {
    const message = this.#message;
    this.versions.update(place);
    if (this.#shown !== message.content) this.prose.update(message.content);
    this.#shown = message.content;
    this.#updateReasoning(message.reasoning ?? "");
    this.#updateCalls(message.toolCalls);
    const empty = message.content === "" && message.toolCalls.length === 0;
    this.waiting.hidden = !(streaming && empty);
    this.queue.textContent = queue ? wordsOfQueue(queue) : "";
    this.node.classList.toggle("streaming", streaming && !empty);
    if (streaming) this.node.setAttribute("aria-busy", "true");
    else this.node.removeAttribute("aria-busy");
    this.footer.classList.toggle("to-come", streaming);
    this.copy.hidden = message.content === "";
    this.again.hidden = isLast && message.error !== null; // beside the failure stands the same
    this.again.disabled = place.busy;
    this.#updateThumbs();
    this.stats.replaceChildren(...(streaming ? [] : statsOf(message)));
    this.#updateCitations(message.citations ?? []);
    this.notices.update(message.notices ?? []);
    this.#updateEnding(streaming, empty);
    this.#updateFailure(streaming ? null : message.error, isLast);
  }

  #updateThumbs() {
    const { replyId, response, rating } = this.#message;
    for (const thumb of this.thumbs) {
      thumb.hidden = !(response ?? replyId);
      thumb.setAttribute("aria-pressed", String(thumb.dataset.rating === rating));
    }
  }

  #updateReasoning(reasoning) {
    this.reasoning.hidden = reasoning === "";
    if (this.thoughts.textContent !== reasoning) this.thoughts.textContent = reasoning;
  }

  #updateCalls(calls) {
    calls.forEach((call, index) => {
      const node = this.calls.children[index] ?? this.calls.appendChild(toolCallNode());
      node.querySelector(".tool-name").textContent = call.name;
      node.querySelector("code").textContent = readableArguments(call.arguments);
      this.#updateResult(node, call);
      this.#updateFiles(node, index, call.files ?? []);
    });
    while (this.calls.children.length > calls.length) this.calls.lastElementChild.remove();
  }

  /** A call without a state is the client's own: nothing here runs it. */
  #updateResult(node, { state = null, result = null }) {
    const running = state !== null && !(state in STATES);
    node.classList.toggle("running", running);
    node.querySelector(".tool-state").textContent = state === null ? "" : (STATES[state] ?? "running…");
    if (!result) return;
    const shown = node.querySelector(".tool-result") ?? node.appendChild(resultNode(result.length <= SHORT_RESULT));
    shown.querySelector("code").textContent = result;
  }

  #updateFiles(node, index, files) {
    if (files.length === 0 && !this.#links[index]) return;
    this.#links[index] ??= new FileLinks(this.#files);
    this.#links[index].update(files);
    if (!node.contains(this.#links[index].node)) node.append(this.#links[index].node);
  }

  #updateCitations(citations) {
    if (this.citations.children.length === citations.length) return;
    this.citations.replaceChildren(...citations.map(({ filename, page }, index) => {
      const where = page ? `${filename}, page ${page}` : filename;
      return element("button.citation", { type: "button", "data-action": "cite", "data-index": String(index) }, icon("file"), where);
    }));
  }

  #updateEnding(streaming, empty) {
    const { finishReason } = this.#message;
    let text = this.#message.detail ?? ENDINGS[finishReason] ?? "";
    // No reason at all: the page was closed or reloaded while the answer was on its way.
    if (finishReason === null) text = "Interrupted: the page was closed before the end.";
    if (finishReason === "stop" && empty) text = "The model answered with nothing.";
    this.ending.textContent = streaming ? "" : text;
    this.ending.hidden = this.ending.textContent === "";
  }

  #updateFailure(error, isLast) {
    const shown = error?.message ?? "";
    this.failure.hidden = error === null;
    if (this.failure.dataset.shown === shown && this.failure.dataset.last === String(isLast)) return;
    this.failure.dataset.shown = shown;
    this.failure.dataset.last = String(isLast);
    this.failure.replaceChildren(...(error ? failureParts(error, isLast) : []));
  }
}

function toolCallNode() {
  return element("section.tool-call", { "aria-label": "Tool call" },
    element("div.tool-head", {}, icon("tool"), element("span", {}, "Tool call"), element("strong.tool-name"), element("span.tool-state", { role: "status" })),
    element("pre", { tabindex: "0" }, element("code")),
  );
}

function resultNode(open) {
  return element("details.tool-result", { open }, element("summary", {}, "Result"), element("pre", { tabindex: "0" }, element("code")));
}

/** Indented where it is whole JSON; as it came while it streams. */
function readableArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    return text;
  }
}

function failureParts({ message, status, param, code, retryAfter }, isLast) {
  const reason = FAILURES[code];
  const details = [
    status ? `HTTP ${status}` : null,
    param ? `parameter ${param}` : null,
    retryAfter ? `the server asks to wait ${retryAfter} s` : null,
  ].filter(Boolean);
  return [
    icon("alert"),
    element("div", {},
      reason && element("p.failure-reason", {}, reason),
      element("p.failure-text", {}, message),
      details.length > 0 && element("p.failure-details", {}, details.join(" · ")),
    ),
    isLast && (code === "content_filter"
      ? element("button.button", { type: "button", "data-action": "edit" }, icon("pencil"), "Edit")
      : element("button.button", { type: "button", "data-action": "regenerate" }, icon("refresh"), "Retry")),
  ].filter(Boolean);
}

function statsOf({ stats, model }) {
  if (!stats) return [];
  const figures = [
    [stats.firstTokenMs, (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`), "to first token"],
    [stats.tokensPerSecond, (rate) => rate.toFixed(rate < 100 ? 1 : 0), "tok/s"],
    [stats.tokens, String, stats.tokens === 1 ? "token" : "tokens"],
  ];
  const parts = figures
    .filter(([value]) => value !== null)
    .map(([value, format, unit]) => element("span.figure", {}, element("b", {}, format(value)), ` ${unit}`));
  return model ? [...parts, element("span.figure.model", {}, model)] : parts;
}
