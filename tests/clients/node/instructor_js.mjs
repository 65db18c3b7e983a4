// instructor-js: `Instructor({client: new OpenAI({baseURL}), mode})`.
import Instructor from "@instructor-ai/instructor";
import OpenAI from "openai";
import { z } from "zod/v3";
import { assert, DEMO, fails, KEY, LONG, MODEL, run, STORY, TOOLS } from "./parts.mjs";

const messages = [{ role: "user", content: STORY }];
const schema = z.object({ name: z.enum(["Tom", "Ann"]) });
const ask = (base, mode, more = {}) => {
  const client = Instructor({ client: new OpenAI({ baseURL: `${base}v1`, apiKey: KEY }), mode });
  return client.chat.completions.create({ model: MODEL, messages, response_model: { schema, name: "Name" }, max_retries: 0, ...more });
};

await run({
  async tools() {
    assert(["Tom", "Ann"].includes((await ask(TOOLS, "TOOLS")).name));
  },
  async json_schema() {
    assert(["Tom", "Ann"].includes((await ask(DEMO, "JSON_SCHEMA")).name));
  },
  async partial() {
    let last;
    for await (const part of await ask(TOOLS, "TOOLS", { stream: true })) last = part;
    assert(["Tom", "Ann"].includes(last.name));
  },
  async a_refusal() {
    const error = await fails(() => ask(DEMO, "JSON_SCHEMA", { messages: [{ role: "user", content: LONG }] }));
    assert(error instanceof OpenAI.BadRequestError, error);
  },
});
