// The messages of a conversation are a tree: a message knows its `parent`'s id (null: it begins the conversation), and
// `next` is the id of that one of its children which is shown; `first`, of the conversation, that of its beginnings. So a
// question asked in other words, or an answer given again, stands beside the one before, and both keep what followed.

/** The messages that are shown, from the first on. */
export function pathOf(conversation) {
  const byId = new Map(conversation.messages.map((message) => [message.id, message]));
  const path = [];
  for (let message = byId.get(conversation.first); message; message = byId.get(message.next)) path.push(message);
  return path;
}

/** The messages that lead to this one, and itself. */
export function pathTo(conversation, message) {
  const path = [];
  for (let step = message; step; step = messageOf(conversation, step.parent)) path.unshift(step);
  return path;
}

export function messageOf(conversation, id) {
  return conversation.messages.find((message) => message.id === id) ?? null;
}

/** All that stand at this message's place, oldest first, itself among them. */
export function versionsOf(conversation, { parent }) {
  return conversation.messages.filter((message) => message.parent === parent);
}

/** Puts a message after `parent` (null: at the beginning), beside what stands there already, and shows it. */
export function append(conversation, message, parent) {
  Object.assign(message, { id: freeId(conversation), parent: parent?.id ?? null, next: null });
  conversation.messages.push(message);
  show(conversation, message);
}

/** Makes this message one of those that are shown, with what was shown after it before. */
export function show(conversation, message) {
  const path = pathTo(conversation, message);
  path.forEach(({ id }, index) => {
    if (index === 0) conversation.first = id;
    else path[index - 1].next = id;
  });
}

/** Takes out a message that nothing follows; the newest of those beside it is shown. */
export function remove(conversation, message) {
  conversation.messages.splice(conversation.messages.indexOf(message), 1);
  const beside = versionsOf(conversation, message).at(-1);
  const parent = messageOf(conversation, message.parent);
  if (beside) show(conversation, beside);
  else if (parent) parent.next = null;
  else conversation.first = null;
}

/** A conversation as earlier releases kept it, without branches, made into one with a single branch; others as they are. */
export function branched(conversation) {
  if ("first" in conversation) return conversation;
  const { messages } = conversation;
  messages.forEach((message, index) => {
    const at = (place) => (messages[place] ? String(place) : null);
    Object.assign(message, { id: at(index), parent: at(index - 1), next: at(index + 1) });
  });
  return { ...conversation, first: messages[0]?.id ?? null };
}

function freeId({ messages }) {
  return String(messages.reduce((most, { id }) => Math.max(most, Number(id)), -1) + 1);
}
