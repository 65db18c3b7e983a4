// OpenAI's own client: `new OpenAI({baseURL})`.
import OpenAI from "openai";
import { assert, DEMO, KEY, MODEL, run, STORY } from "./parts.mjs";

const client = new OpenAI({ baseURL: `${DEMO}v1`, apiKey: KEY });
const messages = [{ role: "user", content: STORY }];

await run({
  async chat() {
    assert((await client.chat.completions.create({ model: MODEL, messages })).choices[0].message.content.includes("6"));
  },
  async stream() {
    assert((await client.chat.completions.stream({ model: MODEL, messages }).finalContent()).includes("6"));
  },
  async responses() {
    assert((await client.responses.create({ model: MODEL, input: STORY })).output_text.includes("6"));
  },
  async models() {
    assert((await client.models.list()).data[0].id === MODEL);
  },
});
