// Calls a weft server from Node, with nothing of weft's but the .proto file.
//
// node grpc.mjs ADDRESS PROTO_FOLDER: prints one JSON object of what it has seen. NODE_PATH has the packages of
// package.json.

import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, protoFolder] = process.argv.slice(2);
const definition = loader.loadSync("weft/v1/generation.proto", { includeDirs: [protoFolder], keepCase: true, enums: String, defaults: true });
const { Generation } = grpc.loadPackageDefinition(definition).weft.v1;
const client = new Generation(address, grpc.credentials.createInsecure());
const chat = { messages: { messages: [{ role: "ROLE_USER", content: "hi" }] } };

function streamed(request) {
  return new Promise((resolve, reject) => {
    const chunks = [];
    client.Stream(request).on("data", (chunk) => chunks.push(chunk)).on("error", reject).on("end", () => resolve(chunks));
  });
}

function whole(request, options = {}) {
  return new Promise((resolve) => {
    client.Generate(request, new grpc.Metadata(), options, (error, reply) => resolve({ error, reply }));
  });
}

function cancelled(request) {
  return new Promise((resolve) => {
    const call = client.Stream(request);
    call.on("data", () => call.cancel());
    call.on("error", (error) => resolve(grpc.status[error.code]));
    call.on("end", () => resolve("OK"));
  });
}

const chunks = await streamed({ ...chat, max_tokens: 20, seed: "9007199254740993" });
const reply = await whole({ prompt: "hi", max_tokens: 20 });
const refused = await whole({ prompt: "hi", temperature: 9 });
const unread = await cancelled({ ...chat, max_tokens: 1000 });
const models = await new Promise((resolve, reject) =>
  client.ListModels({}, (error, found) => (error ? reject(error) : resolve(found.models))),
);
client.close();

console.log(
  JSON.stringify({
    streamed: chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.text).join(""),
    pieces: chunks.length,
    finish: chunks.flatMap((chunk) => chunk.choices).at(-1).finish_reason,
    usage: chunks.at(-1).usage,
    whole: reply.reply.choices[0].text,
    refused: { code: grpc.status[refused.error.code], details: refused.error.details },
    cancelled: unread,
    models: models.map((model) => model.id),
  }),
);
