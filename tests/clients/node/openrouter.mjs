// OpenRouter's SDK: `new OpenRouter({serverURL})`. It checks every answer against its schemas.
import { OpenRouter } from "@openrouter/sdk";
import { ResponseValidationError } from "@openrouter/sdk/models/errors";
import { assert, DEMO, fails, KEY, LONG, MODEL, run, STORY, TOOLS } from "./parts.mjs";

const client = (base) => new OpenRouter({ serverURL: `${base}v1`, apiKey: KEY });
const send = (chatRequest, base = DEMO) =>
  client(base).chat.send({ chatRequest: { model: MODEL, messages: [{ role: "user", content: STORY }], ...chatRequest } });
const schema = { type: "object", properties: { name: { enum: ["Tom", "Ann"] } }, required: ["name"] };
const tools = [{ type: "function", function: { name: "find", description: "Finds.", parameters: schema } }];
const find = { tools, toolChoice: { type: "function", function: { name: "find" } }, maxCompletionTokens: 300 };

await run({
  async chat() {
    assert((await send({})).choices[0].message.content.includes("6"));
  },
  async stream() {
    let text = "";
    for await (const chunk of await send({ stream: true })) text += chunk.choices[0]?.delta.content ?? "";
    assert(text.includes("6"));
  },
  async logprobs() {
    assert((await send({ logprobs: true, topLogprobs: 2 })).choices[0].logprobs.content[0].topLogprobs.length === 2);
  },
  async structured() {
    const answer = await send({ responseFormat: { type: "json_schema", jsonSchema: { name: "a", schema, strict: true } } });
    assert(["Tom", "Ann"].includes(JSON.parse(answer.choices[0].message.content).name));
  },
  async tools() {
    const answer = await send(find, TOOLS);
    assert(answer.choices[0].message.toolCalls[0].function.name === "find");
  },
  async a_stream_of_tools() {
    let text = "";
    for await (const chunk of await send({ ...find, stream: true }, TOOLS)) text += chunk.choices[0]?.delta.toolCalls?.[0].function.arguments ?? "";
    assert(["Tom", "Ann"].includes(JSON.parse(text).name));
  },
  async responses() {
    const answer = await client(DEMO).beta.responses.send({ responsesRequest: { model: MODEL, input: STORY } });
    assert(answer.output[0].content[0].text.includes("6"));
  },
  async a_stream_of_responses() {
    const events = await client(DEMO).beta.responses.send({ responsesRequest: { model: MODEL, input: STORY, stream: true } });
    let text = "";
    for await (const event of events) text += event.type === "response.output_text.delta" ? event.delta : "";
    assert(text.includes("6"));
  },
  // OpenRouter's errors have a number as their `code`, OpenAI's a text
  async a_refusal() {
    const error = await fails(() => send({ messages: [{ role: "user", content: LONG }] }));
    assert(error instanceof ResponseValidationError && error.statusCode === 400, error);
  },
});
