// The figures of an answer of eleven tokens: the first after 250 ms, the last `span` ms later.
async (span) => {
  const { Turn } = await import("/static/js/turn.js");
  const { assistantMessage } = await import("/static/js/conversation.js");
  let now = 1000;
  const api = { completion: async function* () {
    yield { choices: [{ delta: { role: "assistant", content: "" } }] };
    now = 1250; yield { choices: [{ delta: { content: "a" } }] };
    now = 1250 + span; yield { choices: [{ delta: { content: "b" } }] };
    now = 9000; yield { choices: [{ delta: {}, finish_reason: "stop" }] };
    yield { choices: [], usage: { completion_tokens: 11 } };
  } };
  const answer = assistantMessage("m");
  await new Turn(api, {}, null, answer, () => now).run(() => {});
  return answer.stats;
}
