// What the server tells of an answer beside its text, in plain words: { kind, text }. A kind that is not known here is
// shown by the server's own sentence.

const LEFT_OUT = {
  turn: ["an earlier exchange", "earlier exchanges"],
  document: ["a passage of the files", "passages of the files"],
  note: ["a note of the memory", "notes of the memory"],
  summary: ["the summary of what was said before", "summaries of what was said before"],
};
const SENTENCES = {
  memory_used: "What you said earlier was used for this answer.",
  memory_unavailable: "The memory could not be used for this answer.",
};
const WHY_NOT = { engine_down: "is away", engine_full: "has more to do than it can" }; // of a model that another stands in for
const REVIEW = "review"; // in a category's place: a person will look at it
const UNJUDGED = "unjudged"; // a category of moderation's: no judge could be asked

/** Of a response's `notices`; whatever else stands in them is made readable rather than refused. */
export function told(notices) {
  if (!Array.isArray(notices)) return [];
  return notices.map((notice) => {
    if (typeof notice === "string") return { kind: "", text: sentence(notice) };
    const kind = typeof notice?.kind === "string" ? notice.kind : "";
    const text = typeof notice?.text === "string" && notice.text ? notice.text : kind.replaceAll("_", " ") || "The server has a notice.";
    if (kind === "fallback" && notice.facts?.answered_by) return { kind, text: wordsOfFallback(notice.facts) };
    return { kind, text: Object.hasOwn(SENTENCES, kind) ? SENTENCES[kind] : sentence(text) };
  });
}

/** Of a response's `left_out`. */
export function ofLeftOut(leftOut) {
  if (!Array.isArray(leftOut) || leftOut.length === 0) return [];
  const counts = new Map();
  for (const { kind } of leftOut.filter(Boolean)) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  const parts = [...counts].map(([kind, count]) => {
    const [one, many] = Object.hasOwn(LEFT_OUT, kind) ? LEFT_OUT[kind] : [`one ${kind}`, `times ${kind}`];
    return count === 1 ? one : `${count} ${many}`;
  });
  return [{ kind: "left_out", text: sentence(`Left out, because the conversation is longer than the model reads: ${listed(parts)}`) }];
}

/** Of the head of a reply: its HTTP headers. */
export function ofHeaders(headers) {
  const noted = headers.get("x-weft-moderation");
  const degraded = headers.get("weft-degraded");
  return [
    ...(noted ? moderation("question", noted.split(",").map((flag) => flag.split("=")[0].trim())) : []),
    degraded && { kind: "degraded", text: wordsOfDegraded(degraded) },
  ].filter(Boolean);
}

/** Of a chat completion's chunk. */
export function ofChunk({ choices, semantic_cache: cached, fallback, notices }) {
  const flags = Object.keys(choices?.[0]?.moderation ?? {});
  const minutes = Math.round((cached?.age_seconds ?? 0) / 60);
  const age = minutes < 1 ? "a moment ago" : minutes === 1 ? "a minute ago" : `${minutes} minutes ago`;
  return [
    ...told(notices),
    fallback && { kind: "fallback", text: wordsOfFallback(fallback) },
    ...moderation("answer", flags),
    cached && { kind: "semantic_cache", text: `Not written anew: this was the answer to a question like yours, ${age}.` },
  ].filter(Boolean);
}

/** A queue's comment in a stream as { before, seconds }; null for any other comment. */
export function queueOf(comment) {
  const found = /^queue position=(\d+) waited=[\d.]+ predicted=([\d.]+)$/.exec(comment.trim());
  return found && { before: Number(found[1]), seconds: Math.ceil(Number(found[2])) };
}

export function wordsOfQueue({ before, seconds }) {
  const place = before === 0 ? "Your turn is next" : before === 1 ? "One request is before yours" : `${before} requests are before yours`;
  return seconds > 0 ? `${place}, about ${seconds} s` : place;
}

function moderation(what, flags) {
  const categories = flags.filter((flag) => flag !== REVIEW);
  return [
    categories.includes(UNJUDGED)
      ? { kind: "moderation", text: `The ${what} could not be checked against the server's content policy.` }
      : categories.length > 0 && { kind: "moderation", text: `The server's content policy noted this ${what}: ${listed(categories)}.` },
    flags.includes(REVIEW) && { kind: "review", text: `A person will look at this ${what}.` },
  ];
}

function wordsOfDegraded(degraded) {
  const most = /max_tokens=(\d+)/.exec(degraded)?.[1];
  return most ? `The server is busy: answers have ${most} tokens at most for now.` : `The server is busy (${degraded}).`;
}

function wordsOfFallback({ asked, answered_by: name, reason }) {
  const why = Object.hasOwn(WHY_NOT, reason) ? `, which ${WHY_NOT[reason]}` : "";
  return `${name} answers in place of ${asked}${why}.`;
}

function listed(parts) {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}

function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
