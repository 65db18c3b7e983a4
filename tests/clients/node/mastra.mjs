// Mastra: an agent with `{id: "custom/NAME", url}`.
import { Agent } from "@mastra/core/agent";
import { assert, DEMO, KEY, MODEL, run, STORY } from "./parts.mjs";

const agent = new Agent({
  id: "bob", name: "bob", instructions: "Count.", model: { id: `custom/${MODEL}`, url: `${DEMO}v1`, apiKey: KEY },
});

await run({
  async generate() {
    assert((await agent.generate(STORY)).text);
  },
  async stream() {
    assert(await (await agent.stream(STORY)).text);
  },
});
