// Genkit: `openAICompatible({name, baseURL})`.
import { openAICompatible } from "@genkit-ai/compat-oai";
import { genkit } from "genkit";
import { assert, DEMO, KEY, MODEL, run, STORY } from "./parts.mjs";

const ai = genkit({ plugins: [openAICompatible({ name: "mrp", apiKey: KEY, baseURL: `${DEMO}v1` })] });

await run({
  async generate() {
    assert((await ai.generate({ model: `mrp/${MODEL}`, prompt: STORY })).text.includes("6"));
  },
  async stream() {
    assert((await ai.generateStream({ model: `mrp/${MODEL}`, prompt: STORY }).response).text.includes("6"));
  },
});
