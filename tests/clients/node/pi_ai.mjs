// pi-ai: a provider of its own, whose models have a `baseUrl` and an `api`.
import { createModels, createProvider } from "@earendil-works/pi-ai";
import { anthropicMessagesApi } from "@earendil-works/pi-ai/api/anthropic-messages.lazy";
import { openAICompletionsApi } from "@earendil-works/pi-ai/api/openai-completions.lazy";
import { openAIResponsesApi } from "@earendil-works/pi-ai/api/openai-responses.lazy";
import { assert, DEMO, KEY, LONG, MODEL, run, STORY, TOOLS } from "./parts.mjs";

const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 };
const shared = { name: "demo", provider: "mrp", reasoning: false, input: ["text"], cost, contextWindow: 1024, maxTokens: 300 };
const model = (api, baseUrl) => ({ ...shared, id: MODEL, api, baseUrl });
const chat = model("openai-completions", `${DEMO}v1`);
const models = createModels();
models.setProvider(
  createProvider({
    id: "mrp",
    name: "mrp",
    auth: { apiKey: { name: "mrp", resolve: async () => ({ auth: { apiKey: KEY } }) } },
    models: [chat],
    api: {
      "openai-completions": openAICompletionsApi(),
      "openai-responses": openAIResponsesApi(),
      "anthropic-messages": anthropicMessagesApi(),
    },
  }),
);
const said = (content) => [{ role: "user", content, timestamp: 0 }];
const answers = async (asked) => {
  const answer = await models.complete(asked, { messages: said(STORY) });
  assert(answer.stopReason === "stop", answer.errorMessage);
  assert(answer.content[0].text.includes("6"));
};

await run({
  async complete() {
    await answers(chat);
  },
  async responses() {
    await answers(model("openai-responses", `${DEMO}v1`));
  },
  async messages() {
    await answers(model("anthropic-messages", DEMO));
  },
  async stream() {
    let text = "";
    for await (const event of models.stream(chat, { messages: said(STORY) })) text += event.type === "text_delta" ? event.delta : "";
    assert(text.includes("6"));
  },
  async tools() {
    const parameters = { type: "object", properties: { name: { enum: ["Tom", "Ann"] } }, required: ["name"] };
    const context = { messages: said(STORY), tools: [{ name: "find", description: "Finds.", parameters }] };
    const asked = model("openai-completions", `${TOOLS}v1`);
    const first = await models.complete(asked, context, { toolChoice: "required" });
    const call = first.content.find((block) => block.type === "toolCall");
    assert(["Tom", "Ann"].includes(call?.arguments.name), first.errorMessage);
    const result = { role: "toolResult", toolCallId: call.id, toolName: "find", content: [{ type: "text", text: "5" }], isError: false, timestamp: 0 };
    const second = await models.complete(asked, { ...context, messages: [...context.messages, first, result] }, { maxTokens: 50 });
    assert(second.stopReason !== "error", second.errorMessage);
  },
  async a_refusal() {
    const answer = await models.complete(chat, { messages: said(LONG) });
    assert(answer.stopReason === "error" && answer.errorMessage.includes("context length"), answer.errorMessage);
  },
});
