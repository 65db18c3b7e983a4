// Hugging Face's client: `new InferenceClient(key, {endpointUrl})`.
import { InferenceClient, InferenceClientProviderApiError } from "@huggingface/inference";
import { assert, DEMO, fails, KEY, LONG, MODEL, run, STORY, TOOLS } from "./parts.mjs";

const client = new InferenceClient(KEY, { endpointUrl: `${DEMO}v1` });
const messages = [{ role: "user", content: STORY }];
const schema = { type: "object", properties: { name: { enum: ["Tom", "Ann"] } }, required: ["name"] };
const tools = [{ type: "function", function: { name: "find", description: "Finds.", parameters: schema } }];
const asked = new InferenceClient(KEY, { endpointUrl: `${TOOLS}v1` });
const find = { model: MODEL, messages, tools, tool_choice: { type: "function", function: { name: "find" } }, max_tokens: 300 };

await run({
  async chat() {
    assert((await client.chatCompletion({ model: MODEL, messages })).choices[0].message.content.includes("6"));
  },
  async stream() {
    let text = "";
    for await (const chunk of client.chatCompletionStream({ model: MODEL, messages })) text += chunk.choices[0]?.delta.content ?? "";
    assert(text.includes("6"));
  },
  async structured() {
    const response_format = { type: "json_schema", json_schema: { name: "a", schema, strict: true } };
    const answer = await client.chatCompletion({ model: MODEL, messages, response_format });
    assert(["Tom", "Ann"].includes(JSON.parse(answer.choices[0].message.content).name));
  },
  async tools() {
    const answer = await asked.chatCompletion(find);
    assert(answer.choices[0].message.tool_calls[0].function.name === "find");
  },
  async a_stream_of_tools() {
    let text = "";
    for await (const chunk of asked.chatCompletionStream(find)) text += chunk.choices[0]?.delta.tool_calls?.[0].function.arguments ?? "";
    assert(["Tom", "Ann"].includes(JSON.parse(text).name));
  },
  async a_refusal() {
    const error = await fails(() => client.chatCompletion({ model: MODEL, messages: [{ role: "user", content: LONG }] }));
    assert(error instanceof InferenceClientProviderApiError && error.httpResponse.status === 400, error);
  },
  async a_refused_stream() {
    const stream = client.chatCompletionStream({ model: MODEL, messages: [{ role: "user", content: LONG }] });
    const error = await fails(() => stream.next());
    assert(error instanceof InferenceClientProviderApiError && error.httpResponse.status === 400, error);
  },
});
