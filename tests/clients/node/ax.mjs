// Ax: `ai({name: "openai", apiURL})`.
import { ai } from "@ax-llm/ax";
import { assert, DEMO, KEY, MODEL, run, STORY } from "./parts.mjs";

const chatPrompt = [{ role: "user", content: STORY }];
const model = ai({ name: "openai", apiKey: KEY, apiURL: `${DEMO}v1`, config: { model: MODEL, stream: false } });

await run({
  async chat() {
    assert((await model.chat({ chatPrompt })).results[0].content.includes("6"));
  },
});
