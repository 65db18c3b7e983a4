// Vercel's AI SDK: `createOpenAICompatible({baseURL})`, `createOpenAI({baseURL})`, `createAnthropic({baseURL})`.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, streamText, tool } from "ai";
import { z } from "zod";
import { assert, DEMO, KEY, MODEL, run, STORY, TOOLS } from "./parts.mjs";

const compatible = (base) => createOpenAICompatible({ name: "mrp", baseURL: `${base}v1`, apiKey: KEY })(MODEL);
const openai = createOpenAI({ baseURL: `${DEMO}v1`, apiKey: KEY });

await run({
  async text() {
    assert((await generateText({ model: compatible(DEMO), prompt: STORY })).text.includes("6"));
  },
  async stream() {
    assert((await streamText({ model: compatible(DEMO), prompt: STORY }).text).includes("6"));
  },
  async chat() {
    assert((await generateText({ model: openai.chat(MODEL), prompt: STORY })).text.includes("6"));
  },
  async responses() {
    assert((await generateText({ model: openai(MODEL), prompt: STORY })).text.includes("6"));
  },
  async anthropic() {
    const model = createAnthropic({ baseURL: `${DEMO}v1`, apiKey: KEY })(MODEL);
    assert((await generateText({ model, prompt: STORY })).text.includes("6"));
  },
  async sampling() {
    assert((await generateText({ model: compatible(DEMO), prompt: STORY, presencePenalty: 0.5, frequencyPenalty: 0.1 })).text);
  },
  async structured() {
    const schema = z.object({ name: z.enum(["Tom", "Ann"]) });
    const answer = await generateText({ model: openai.chat(MODEL), prompt: STORY, output: Output.object({ schema }) });
    assert(["Tom", "Ann"].includes(answer.output.name));
  },
  async a_tool_of_zod() {
    const inputSchema = z.object({ counts: z.record(z.enum(["a", "b"]), z.boolean()), never: z.never().optional() });
    const tools = { find: tool({ description: "Finds.", inputSchema }) };
    const answer = await generateText({ model: compatible(TOOLS), prompt: STORY, tools, toolChoice: { type: "tool", toolName: "find" } });
    assert(typeof answer.toolCalls[0].input.counts.a === "boolean");
  },
  async second_turn_without_state() {
    const options = { model: openai(MODEL), providerOptions: { openai: { store: false } } };
    const first = await generateText({ ...options, prompt: STORY });
    const messages = [{ role: "user", content: STORY }, ...first.response.messages, { role: "user", content: STORY }];
    assert((await generateText({ ...options, messages })).text);
  },
});
