// Asks the server. Addresses are relative, so the page also works behind a prefix.

const KEY = "mrp-serve-key";

/** An error as the API words it. `retryAfter`: seconds, where the server says so. */
export class ApiError extends Error {
  constructor(status, detail, retryAfter) {
    super(detail.message);
    Object.assign(this, { status, code: detail.code, param: detail.param, requestId: detail.request_id, retryAfter });
  }
}

/** The connection ended before the answer did, or was never made. */
export class Lost extends Error {}

/** The API key is kept in this tab and goes away with it. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** What is served: GET /v1/models. */
export async function served() {
  const answer = await ask("v1/models", {});
  return (await answer.json()).data[0];
}

/** Whether a replica is ready, so that a request starts none: GET /health. */
export async function ready() {
  return ask("health", {}).then((answer) => answer.json(), () => ({})).then((health) => health.replicas_ready > 0);
}

/** Names and colours of the states of a cell. */
export async function states() {
  return (await ask("playground/states.json", {})).json();
}

/** The events of a streamed answer, as {event, data}. */
export async function* generate(body, signal) {
  const headers = { "Content-Type": "application/json" };
  const answer = await ask("generate", { method: "POST", headers, body: JSON.stringify(body), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => lost(error, signal));
    if (done) return;
    rest += value;
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const text of events) {
      const event = parsed(text);
      if (event?.event === "error") throw new ApiError(answer.status, event.data.error);
      if (event) yield event;
    }
  }
}

function parsed(text) {
  const fields = Object.fromEntries(text.split("\n").map((line) => [line.split(":", 1)[0], line.slice(line.indexOf(":") + 2)]));
  return fields.data === undefined ? null : { event: fields.event, data: JSON.parse(fields.data) };
}

async function ask(path, options) {
  const headers = { ...options.headers, ...(key.get() ? { Authorization: `Bearer ${key.get()}` } : {}) };
  const answer = await fetch(path, { ...options, headers }).catch((error) => lost(error, options.signal));
  if (answer.ok) return answer;
  const unknown = { code: `http_${answer.status}`, message: `${path}: the server answered ${answer.status}` };
  const detail = await answer.json().then((body) => body.error ?? unknown, () => unknown);
  throw new ApiError(answer.status, detail, answer.headers.get("Retry-After"));
}

function lost(error, signal) {
  if (signal?.aborted) throw error;
  throw new Lost("The connection was lost.");
}
