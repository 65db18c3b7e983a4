// Vercel's AI SDK and LangChain.js: their parts are called, and their errors are printed as one line of JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, streamText } from "ai";

const { DEMO, MODEL } = process.env;
const STORY = "Tom has 5 apples, gets 3, loses 2.";
const LONG = "Tom has 5 apples. ".repeat(600);
const errors = {};

async function part(name, call) {
  try {
    errors[name] = (await call()) ? null : "no answer";
  } catch (error) {
    errors[name] = `${error.constructor.name}: ${error.message}`.slice(0, 300);
  }
}

const openai = createOpenAI({ baseURL: `${DEMO}v1`, apiKey: "none" });
const compatible = createOpenAICompatible({ name: "mrp-serve", baseURL: `${DEMO}v1` });
const langchain = (options) => new ChatOpenAI({ model: MODEL, apiKey: "none", configuration: { baseURL: `${DEMO}v1` }, ...options });

await part("responses", async () => (await generateText({ model: openai(MODEL), prompt: STORY })).text.includes("6"));
await part("chat", async () => (await generateText({ model: openai.chat(MODEL), prompt: STORY, presencePenalty: 0.5 })).text);
await part("compatible", async () => (await generateText({ model: compatible(MODEL), prompt: STORY })).text.includes("6"));
await part("stream", async () => {
  let text = "";
  for await (const piece of streamText({ model: openai.chat(MODEL), prompt: STORY }).textStream) text += piece;
  return text.includes("6");
});
// Responses are not stored, so the client must send its items itself.
await part("second_turn", async () => {
  const options = { model: openai(MODEL), providerOptions: { openai: { store: false } }, maxRetries: 0 };
  const first = await generateText({ ...options, prompt: STORY });
  const messages = [{ role: "user", content: STORY }, ...first.response.messages, { role: "user", content: STORY }];
  return (await generateText({ ...options, messages })).text;
});
await part("langchain", async () => (await langchain().invoke(STORY)).content.includes("6"));
await part("langchain_penalty", async () => (await langchain({ frequencyPenalty: 0.5 }).invoke(STORY)).content);
// LangChain.js repeats what it does not know as a refusal, for a minute and a half.
await part("langchain_knows_a_long_prompt_at_once", async () => {
  const start = Date.now();
  const error = await langchain().invoke(LONG).catch((refusal) => refusal);
  return error.constructor.name === "ContextOverflowError" && Date.now() - start < 5000;
});
console.log(JSON.stringify({ errors }));
process.exit(0);
