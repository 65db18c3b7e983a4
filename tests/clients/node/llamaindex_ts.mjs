// LlamaIndex.TS: `openai({baseURL})`.
import { openai } from "@llamaindex/openai";
import { assert, DEMO, KEY, MODEL, run, STORY } from "./parts.mjs";

const model = openai({ model: MODEL, apiKey: KEY, baseURL: `${DEMO}v1` });
const messages = [{ role: "user", content: STORY }];

await run({
  async chat() {
    assert((await model.chat({ messages })).message.content.includes("6"));
  },
  async stream() {
    let text = "";
    for await (const chunk of await model.chat({ messages, stream: true })) text += chunk.delta;
    assert(text.includes("6"));
  },
});
