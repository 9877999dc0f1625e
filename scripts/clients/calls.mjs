// The openai and @anthropic-ai/sdk libraries of Node: URL KEY MODEL as arguments; a line of JSON for each call.
import { createRequire } from "node:module";
import path from "node:path";

const [url, key, model] = process.argv.slice(2);
const require = createRequire(path.join(process.cwd(), "package.json"));
const messages = [{ role: "user", content: "Say hello." }];

function expect(truth, what) {
  if (!truth) throw new Error(`not as expected: ${what}`);
}

const calls = {
  "openai (Node)": {
    async chat() {
      const { OpenAI } = require("openai");
      const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
      const reply = await client.chat.completions.create({ model, messages, max_tokens: 16 });
      expect(reply.usage.completion_tokens > 0, "usage");
    },
    async "chat, streamed"() {
      const { OpenAI } = require("openai");
      const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
      const stream = await client.chat.completions.create({ model, messages, max_tokens: 16, stream: true });
      let chunks = 0;
      for await (const chunk of stream) chunks += chunk.choices.length;
      expect(chunks > 0, "chunks");
    },
  },
  "anthropic (Node)": {
    async messages() {
      const Anthropic = require("@anthropic-ai/sdk").default;
      const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
      const reply = await client.messages.create({ model, messages, max_tokens: 16 });
      expect(reply.usage.output_tokens > 0, "usage");
    },
    async "messages, streamed"() {
      const Anthropic = require("@anthropic-ai/sdk").default;
      const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
      const reply = await client.messages.stream({ model, messages, max_tokens: 16 }).finalMessage();
      expect(reply.stop_reason !== null, "why it ended");
    },
  },
};

for (const [client, named] of Object.entries(calls)) {
  for (const [name, run] of Object.entries(named)) {
    let fault = "";
    try {
      await run();
    } catch (error) {
      fault = error.code === "MODULE_NOT_FOUND" ? "not installed" : String(error.message ?? error);
    }
    console.log(JSON.stringify({ client, name, fault }));
  }
}
