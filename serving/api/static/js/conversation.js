// A conversation is plain data, ready for JSON:
//   { id, title, created, updated, messages, first, library? }
//   messages           all of its branches', each { id, parent, next }: see branches.js
//   library            { store, files: [{ id, name }] }: a vector store of the server's, and what was put into it
//   user message       { role: "user", content }
//   assistant message  { role: "assistant", content, reasoning, model, toolCalls, citations, finishReason, stats, error, stream }
//                      and, where the server said so, { detail } of its end, { notices }, each { kind, text }, and
//                      { response } or { replyId }, its id at the server as a response or a chat completion, and what its
//                      reader thinks of it, { rating }, "up" or "down"
//                      and { mentions } of files that programs wrote, each { container, id, name }
//   tool call          { name, arguments }, and of one that runs on the server { state, result, files }, its program's,
//                      each { container, id, name, bytes, type }
//   stream             { id, after, kind } while the answer is on its way: where it goes on, by which API; else null

import { pathOf } from "./branches.js";
import { randomId } from "./random_id.js";

const TITLE_LENGTH = 60;

export function newConversation() {
  const now = Date.now();
  return { id: randomId(), title: "", created: now, updated: now, messages: [], first: null };
}

export function userMessage(content) {
  return { role: "user", content };
}

export function assistantMessage(model) {
  const parts = { content: "", reasoning: "", toolCalls: [], citations: [] };
  return { role: "assistant", ...parts, model, finishReason: null, stats: null, error: null, stream: null };
}

/** The first line of what was asked first. */
export function titleFor(text) {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1).trimEnd()}…` : line;
}

/** The answer that was on its way when the page was left, in whichever branch, or null. */
export function interruptedAnswer({ messages }) {
  return messages.find(({ role, finishReason, stream }) => role === "assistant" && finishReason === null && stream?.id) ?? null;
}

/** The newest question that is shown, or null. */
export function lastQuestion(conversation) {
  return pathOf(conversation).findLast(({ role }) => role === "user") ?? null;
}

/** Whether nothing came of this answer but the reason for that. */
export function isEmptyFailure({ content, toolCalls, error }) {
  return error !== null && content === "" && toolCalls.length === 0;
}

/**
 * What the model is sent: answers that never came are left out, and the questions around them become one, because many
 * chat templates refuse two user messages in a row.
 */
export function requestMessages(path, systemPrompt) {
  const messages = systemPrompt ? [{ role: "system", content: systemPrompt }] : [];
  for (const { role, content } of path) {
    if (role === "assistant" && content === "") continue;
    const previous = messages.at(-1);
    if (role === "user" && previous?.role === "user") previous.content += `\n\n${content}`;
    else messages.push({ role, content });
  }
  return messages;
}

/** Where the server has the answer that this question follows: its id there, and what is new since; else null. */
export function previousOf(path) {
  const [answer, question] = path.slice(-2);
  const whole = answer?.response && ["stop", "length"].includes(answer.finishReason);
  return whole && question ? { response: answer.response, messages: [{ role: "user", content: question.content }] } : null;
}

/** Of all its branches, those too that are not shown. */
export function matches(conversation, words) {
  return found(conversation.title, words) || conversation.messages.some(({ content }) => found(content, words));
}

/** The message to show so that the words which found this conversation can be read; null where they already can. */
export function hiddenMatch(conversation, words) {
  if (found(conversation.title, words) || pathOf(conversation).some(({ content }) => found(content, words))) return null;
  return conversation.messages.findLast(({ content }) => found(content, words)) ?? null;
}

function found(text, words) {
  return text.toLowerCase().includes(words.trim().toLowerCase());
}
