// LangChain.js: `new ChatOpenAI({configuration: {baseURL}})`.
import { ChatOpenAI } from "@langchain/openai";
import { assert, DEMO, fails, KEY, LONG, MODEL, run, STORY } from "./parts.mjs";

const model = (options = {}) => new ChatOpenAI({ model: MODEL, apiKey: KEY, configuration: { baseURL: `${DEMO}v1` }, ...options });

await run({
  async invoke() {
    assert((await model().invoke(STORY)).content.includes("6"));
  },
  async stream() {
    let text = "";
    for await (const chunk of await model().stream(STORY)) text += chunk.content;
    assert(text.includes("6"));
  },
  async batch() {
    assert((await model().batch([STORY, STORY])).length === 2);
  },
  async responses() {
    assert((await model({ useResponsesApi: true }).invoke(STORY)).text.includes("6"));
  },
  async a_refusal_comes_at_once() {
    const started = Date.now();
    await fails(() => model().invoke(LONG));
    assert(Date.now() - started < 5000, `it took ${Date.now() - started} ms`);
  },
});
