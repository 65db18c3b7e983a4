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
    byId("race").addEventListener("change", () => this.#race());
  }

  /** What stands in the form; a race has two plans. */
  get state() {
    const kind = [...document.getElementsByName("kind")].find((input) => input.checked).value;
    const [seed, temperature, tokens] = ["seed", "temperature", "tokens"].map((id) => byId(id).value);
    const plans = this.plans.slice(0, byId("race").checked ? 2 : 1).map((picker) => picker.value);
    return { kind, prompt: this.prompt.value, seed, temperature, tokens, plans };
  }

  /** Takes a plan from elsewhere: the only plan, or in a race the second one. */
  take(plan) {
    this.plans[byId("race").checked ? 1 : 0].set(plan);
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
    const picker = new PlanPicker(this.model, number ? "Plan B" : "Plan A", plan, this.onchange);
    byId("plans").append(picker.root);
    return picker;
  }

  #fill(state) {
    this.prompt.value = state.prompt;
    byId("seed").value = state.seed;
    byId("temperature").value = state.temperature;
    byId("tokens").value = state.tokens;
    byId("race").checked = state.race;
    this.#kind(state.kind);
    this.#race();
  }

  #kind(kind) {
    for (const input of document.getElementsByName("kind")) input.checked = input.value === kind;
  }

  #race() {
    const race = byId("race").checked;
    this.plans[1].root.hidden = !race;
    document.body.classList.toggle("race", race);
    this.onchange();
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

/** The form at first: the card's first example and the first plan, without a race. */
export function initial(model) {
  const [first] = prompts(model);
  const plan = firstPlan(model);
  const tokens = Math.min(TOKENS, Math.floor(model.max_model_len / 2));
  return { kind: first?.kind ?? (model.chat_template ? "chat" : "plain"), prompt: first?.prompt ?? "", seed: "17", temperature: "0", tokens: String(tokens), plans: [plan], race: false };
}

/** The default mode: by the calibration's lossless plan for one request, else with the steps that MRP was trained for. */
function firstPlan(model) {
  const mode = model.default_mode;
  const [lone] = model.quality.measured ? model.quality.presets.lossless : [];
  if (lone?.mode === mode) return { mode, knobs: lone.knobs };
  const steps = model.mode_info[mode].knobs.mrp_steps && model.mrp?.default_steps;
  return { mode, knobs: steps ? { mrp_steps: steps } : {} };
}

/** Fills up what a link leaves out, and adds the second plan that the form has ready. */
export function completed(state, model) {
  const whole = { ...state, race: state.race ?? state.plans.length > 1 };
  const plans = state.plans.length ? [...state.plans] : initial(model).plans;
  if (plans.length < 2) plans.push({ mode: model.modes.find((mode) => mode !== plans[0].mode) ?? model.modes[0], knobs: {} });
  return { ...whole, plans, kind: model.chat_template ? state.kind : "plain" };
}

/** The card's examples that are one message or one text. */
function prompts(model) {
  return model.examples.flatMap(({ title, text, messages }) => {
    if (!messages) return [{ title, kind: "plain", prompt: text }];
    return messages.length === 1 && model.chat_template ? [{ title, kind: "chat", prompt: messages[0].content }] : [];
  });
}
