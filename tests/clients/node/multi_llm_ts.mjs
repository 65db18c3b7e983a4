// multi-llm-ts: the engine `openai` with a `baseURL`.
import { igniteEngine, Message, Plugin } from "multi-llm-ts";
import { z } from "zod/v3";
import { assert, DEMO, fails, KEY, LONG, MODEL, run, STORY, TOOLS } from "./parts.mjs";

const engine = (base, more = {}) => igniteEngine("openai", { apiKey: KEY, baseURL: `${base}v1`, ...more });
const said = (content) => [new Message("system", "You count."), new Message("user", content)];

class Find extends Plugin {
  isEnabled() {
    return true;
  }
  getName() {
    return "find";
  }
  getDescription() {
    return "Finds.";
  }
  getRunningDescription() {
    return "It finds.";
  }
  getParameters() {
    return [{ name: "name", type: "string", description: "a name", enum: ["Tom", "Ann"], required: true }];
  }
  async execute(context, { name }) {
    this.found = name;
    return "5";
  }
}

await run({
  async complete() {
    const demo = engine(DEMO);
    assert((await demo.complete(demo.buildModel(MODEL), said(STORY))).content.includes("6"));
  },
  async stream() {
    const demo = engine(DEMO);
    let text = "";
    for await (const chunk of demo.generate(demo.buildModel(MODEL), said(STORY))) text += chunk.type === "content" ? chunk.text : "";
    assert(text.includes("6"));
  },
  async tools() {
    const asked = engine(TOOLS);
    const find = new Find();
    asked.addPlugin(find);
    const options = { toolChoice: { type: "tool", name: "find" }, maxTokens: 300 };
    for await (const chunk of asked.generate(asked.buildModel(MODEL), said(STORY), options)) if (find.found) break;
    assert(["Tom", "Ann"].includes(find.found));
  },
  async structured() {
    const demo = engine(DEMO);
    const structure = z.object({ name: z.enum(["Tom", "Ann"]) });
    const answer = await demo.complete(demo.buildModel(MODEL), said(STORY), { structuredOutput: { name: "a", structure } });
    assert(["Tom", "Ann"].includes(JSON.parse(answer.content).name), answer.content);
  },
  async models() {
    assert((await engine(DEMO).getModels())[0].id === MODEL);
  },
  async a_refusal() {
    const demo = engine(DEMO);
    const error = await fails(() => demo.complete(demo.buildModel(MODEL), said(LONG)));
    assert(error.constructor.name === "BadRequestError" && error.status === 400, error);
  },
});
