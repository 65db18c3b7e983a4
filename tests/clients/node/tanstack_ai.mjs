// TanStack AI: `openaiCompatible({baseURL, models})`.
import { chat, toolDefinition } from "@tanstack/ai";
import { openaiCompatible } from "@tanstack/ai-openai/compatible";
import { z } from "zod";
import { assert, DEMO, fails, KEY, LONG, MODEL, run, STORY, TOOLS } from "./parts.mjs";

const adapter = (base, api = "chat-completions") => openaiCompatible({ baseURL: `${base}v1`, apiKey: KEY, models: [MODEL], api })(MODEL);
const said = (content) => [{ role: "user", content }];
const schema = z.object({ name: z.enum(["Tom", "Ann"]) });

await run({
  async text() {
    assert((await chat({ adapter: adapter(DEMO), messages: said(STORY), stream: false })).includes("6"));
  },
  async stream() {
    let text = "";
    for await (const chunk of chat({ adapter: adapter(DEMO), messages: said(STORY) })) text += chunk.type === "TEXT_MESSAGE_CONTENT" ? chunk.delta : "";
    assert(text.includes("6"));
  },
  async responses() {
    assert((await chat({ adapter: adapter(DEMO, "responses"), messages: said(STORY), stream: false })).includes("6"));
  },
  async structured() {
    assert(["Tom", "Ann"].includes((await chat({ adapter: adapter(DEMO), messages: said(STORY), outputSchema: schema })).name));
  },
  async tools() {
    let found;
    const find = toolDefinition({ name: "find", description: "Finds.", inputSchema: schema }).server(({ name }) => (found = name));
    const options = { tool_choice: "required", max_tokens: 300 };
    const chunks = chat({ adapter: adapter(TOOLS), messages: said(STORY), tools: [find], modelOptions: options });
    for await (const chunk of chunks) if (found || chunk.type === "RUN_ERROR") break;
    assert(["Tom", "Ann"].includes(found));
  },
  async a_refusal() {
    const error = await fails(() => chat({ adapter: adapter(DEMO), messages: said(LONG), stream: false }));
    assert(error.code === "context_length_exceeded", error);
  },
});
