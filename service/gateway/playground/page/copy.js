// The request on the screen as curl, Python and OpenAI's client. The API key never stands in it.

const KNOWN = new Set(["model", "messages", "prompt", "temperature", "seed", "max_new_tokens"]);

/** The ways to write a request. */
export const WAYS = { curl, Python: python, "OpenAI client": openai };

function curl(body, { url, locked }) {
  const key = locked ? `\n  -H "Authorization: Bearer $MRP_SERVE_KEY" \\` : "";
  return `curl -s ${url}generate \\${key}\n  -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(body, null, 2))}`;
}

function python(body, { url, locked }) {
  const key = locked ? `,\n    headers={"Authorization": "Bearer " + os.environ["MRP_SERVE_KEY"]}` : "";
  return `${locked ? "import os\n\n" : ""}import httpx

answer = httpx.post(
    ${literal(`${url}generate`, 4)},
    json=${literal(body, 4)}${key},
    timeout=120,
)
answer.raise_for_status()
print(answer.json()["text"])`;
}

function openai(body, { url, locked, model }) {
  const chat = body.messages !== undefined;
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !KNOWN.has(name)));
  const lines = [
    `    model=${literal(model, 4)},`,
    chat ? `    messages=${literal(body.messages, 4)},` : `    prompt=${literal(body.prompt, 4)},`,
    `    max_tokens=${literal(body.max_new_tokens, 4)},`,
    `    temperature=${literal(body.temperature, 4)},`,
    `    seed=${literal(body.seed, 4)},`,
    `    extra_body=${literal(extra, 4)},`,
  ];
  const key = locked ? `os.environ["MRP_SERVE_KEY"]` : `"none"`;
  return `${locked ? "import os\n\n" : ""}import openai

client = openai.OpenAI(base_url=${literal(`${url}v1`, 4)}, api_key=${key})
answer = client.${chat ? "chat." : ""}completions.create(
${lines.join("\n")}
)
print(answer.choices[0].${chat ? "message.content" : "text"})`;
}

/** A text between single quotes of a shell. */
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** A value as Python writes it. JSON's texts are Python's, but for half characters, which JSON escapes alike. */
function literal(value, indent) {
  const pad = " ".repeat(indent + 4), end = " ".repeat(indent);
  if (Array.isArray(value)) return `[${value.map((one) => literal(one, indent)).join(", ")}]`;
  if (value === null || value === undefined || Number.isNaN(value)) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const rows = Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, indent + 4)}`);
  const short = `{${rows.join(", ")}}`;
  return short.length < 90 && !short.includes("\n") ? short : `{\n${pad}${rows.join(`,\n${pad}`)},\n${end}}`;
}
