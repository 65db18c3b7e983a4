// The form: prompt, plans and sampling. It knows what is asked, not how it is answered.

import { byId, el } from "./dom.js";
import { PlanPicker, fields } from "./plan.js";

const TOKENS = 256;

/** The form over a model. `onchange` is called after every change. */
export class Form {
  constructor(model, state, onchange) {
    this.model = model;
    this.onchange = onchange;
    this.prompt = byId("prompt");
    this.plans = state.plans.map((plan, number) => this.#picker(plan, number));
    byId("kind").hidden = !model.chat_template;
    byId("tokens").max = model.max_model_len;
    this.#examples();
    this.#fill(state);
    for (const id of ["prompt", "seed", "temperature", "tokens"]) byId(id).addEventListener("input", onchange);
    for (const input of document.getElementsByName("kind")) input.addEventListener("change", onchange);
    byId("draw").addEventListener("click", () => this.#draw());
  }

  /** What stands in the form. `plans`: those of answers A and B. */
  get state() {
    const kind = [...document.getElementsByName("kind")].find((input) => input.checked).value;
    const [seed, temperature, tokens] = ["seed", "temperature", "tokens"].map((id) => byId(id).value);
    const plans = this.plans.map((picker) => picker.value);
    return { kind, prompt: this.prompt.value, seed, temperature, tokens, plans };
  }

  /** The first field with a value that the server would refuse, null if there is none. */
  get invalid() {
    return byId("form").querySelector("input:invalid, textarea:invalid");
  }

  /** Takes a plan from elsewhere, for answer A. */
  take(plan) {
    this.plans[0].set(plan);
    this.onchange();
  }

  /** The body of the request for a plan. */
  body(plan) {
    const { kind, prompt, seed, temperature, tokens } = this.state;
    const asked = kind === "chat" ? { messages: [{ role: "user", content: prompt }] } : { prompt };
    const known = Object.entries({ seed, temperature, max_new_tokens: tokens }).filter(([, text]) => text !== "");
    return { ...fields(plan), ...asked, ...Object.fromEntries(known.map(([name, text]) => [name, Number(text)])) };
  }

  #picker(plan, number) {
    const picker = new PlanPicker(this.model, "AB"[number], plan, this.onchange);
    byId("plans").append(picker.root);
    return picker;
  }

  #fill(state) {
    this.prompt.value = state.prompt;
    byId("seed").value = state.seed;
    byId("temperature").value = state.temperature;
    byId("tokens").value = state.tokens;
    this.#kind(state.kind);
  }

  #kind(kind) {
    for (const input of document.getElementsByName("kind")) input.checked = input.value === kind;
  }

  #draw() {
    byId("seed").value = crypto.getRandomValues(new Uint32Array(1))[0];
    this.onchange();
  }

  #examples() {
    const chips = prompts(this.model).map(({ title, kind, prompt }) =>
      el("button", { type: "button", class: "chip", onclick: () => this.#example(kind, prompt) }, el("bdi", { text: title })));
    byId("examples").replaceChildren(...chips);
    byId("examples").hidden = !chips.length;
  }

  #example(kind, prompt) {
    this.prompt.value = prompt;
    this.#kind(kind);
    this.onchange();
  }
}

/** The form at first: the card's first example and the first plan. */
export function initial(model) {
  const [first] = prompts(model);
  const plan = firstPlan(model);
  const tokens = Math.min(TOKENS, Math.floor(model.max_model_len / 2));
  return { kind: first?.kind ?? (model.chat_template ? "chat" : "plain"), prompt: first?.prompt ?? "", seed: "17", temperature: "0", tokens: String(tokens), plans: [plan] };
}

/** The default mode with drafts in every forward. `auto` drafts by the load, so a race may have no drafts to show. */
function firstPlan(model) {
  const mode = model.default_mode;
  return { mode, knobs: model.mode_info[mode].knobs.mrp_steps ? { mrp_steps: model.mrp ? 2 : 0 } : {} };
}

/** Fills up what a link leaves out, the plan of answer B among it. */
export function completed(state, model) {
  const plans = state.plans.length ? [...state.plans] : initial(model).plans;
  if (plans.length < 2) plans.push({ mode: model.modes.find((mode) => mode !== plans[0].mode) ?? model.modes[0], knobs: {} });
  return { ...state, plans, kind: model.chat_template ? state.kind : "plain" };
}

/** The card's examples that are one message or one text. */
function prompts(model) {
  return model.examples.flatMap(({ title, text, messages }) => {
    if (!messages) return [{ title, kind: "plain", prompt: text }];
    return messages.length === 1 && model.chat_template ? [{ title, kind: "chat", prompt: messages[0].content }] : [];
  });
}
