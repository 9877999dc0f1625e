// A conversation is plain data, ready for JSON:
//   { id, title, created, updated, messages, library? }
//   library            { store, files: [{ id, name }] }: a vector store of the server's, and what was put into it
//   user message       { role: "user", content }
//   assistant message  { role: "assistant", content, model, toolCalls, citations, finishReason, stats, error, stream }
//                      and, where the server said so, { detail } of its end and { notices }
//   tool call          { name, arguments }, and of one that runs on the server { state, result }
//   stream             { id, after, kind } while the answer is on its way: where it goes on, by which API; else null

const TITLE_LENGTH = 60;

export function newConversation() {
  const now = Date.now();
  return { id: randomId(), title: "", created: now, updated: now, messages: [] };
}

export function userMessage(content) {
  return { role: "user", content };
}

export function assistantMessage(model) {
  const parts = { content: "", toolCalls: [], citations: [] };
  return { role: "assistant", ...parts, model, finishReason: null, stats: null, error: null, stream: null };
}

/** The first line of what was asked first. */
export function titleFor(text) {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1).trimEnd()}…` : line;
}

/** The answer that was on its way when the page was left, or null. */
export function interruptedAnswer(conversation) {
  const last = conversation.messages.at(-1);
  return last?.role === "assistant" && last.finishReason === null && last.stream?.id ? last : null;
}

export function lastUserIndex(conversation) {
  return conversation.messages.findLastIndex((message) => message.role === "user");
}

/**
 * What the model is sent: answers that never came are left out, and the questions around them become one, because many
 * chat templates refuse two user messages in a row.
 */
export function requestMessages(conversation, systemPrompt) {
  const messages = systemPrompt ? [{ role: "system", content: systemPrompt }] : [];
  for (const { role, content } of conversation.messages) {
    if (role === "assistant" && content === "") continue;
    const previous = messages.at(-1);
    if (role === "user" && previous?.role === "user") previous.content += `\n\n${content}`;
    else messages.push({ role, content });
  }
  return messages;
}

export function matches(conversation, words) {
  const wanted = words.trim().toLowerCase();
  if (!wanted) return true;
  const texts = [conversation.title, ...conversation.messages.map((message) => message.content)];
  return texts.some((text) => text.toLowerCase().includes(wanted));
}

// crypto.randomUUID exists only on https and localhost; a server in the next room is neither.
function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(36).padStart(2, "0")).join("");
}
