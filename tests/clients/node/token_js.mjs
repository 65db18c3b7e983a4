// Token.js: the provider `openai-compatible` with a `baseURL`.
import { TokenJS } from "token.js";
import { assert, DEMO, KEY, MODEL, run, STORY } from "./parts.mjs";

const client = new TokenJS({ baseURL: `${DEMO}v1`, apiKey: KEY });
const messages = [{ role: "user", content: STORY }];

await run({
  async chat() {
    const answer = await client.chat.completions.create({ provider: "openai-compatible", model: MODEL, messages });
    assert(answer.choices[0].message.content.includes("6"));
  },
});
