// Picks a plan: a quality by name, or a mode with its knobs. What there is and its limits come from GET /v1/models.

import { el, unique } from "./dom.js";

/** A plan as text: `remask threshold=0.5`. */
export function named(plan) {
  if (plan.quality) return `quality ${plan.quality}`;
  return [plan.mode, ...Object.entries(plan.knobs ?? {}).map(([name, value]) => `${name}=${value}`)].join(" ");
}

/** A plan as fields of a request. */
export const fields = (plan) => (plan.quality ? { quality: plan.quality } : { mode: plan.mode, ...plan.knobs });

/** The mode and knobs that run, of a quality those of its first plan; knobs that are not set have the mode's defaults. */
export function resolved(plan, model) {
  const { mode, knobs } = plan.quality ? model.quality.presets[plan.quality][0] : plan;
  return { mode, knobs: { ...model.defaults[mode], ...knobs } };
}

/** Whether two plans run the same. */
export function same(one, other, model) {
  const written = (plan) => {
    const { mode, knobs } = resolved(plan, model);
    return JSON.stringify([mode, Object.entries(knobs).sort()]);
  };
  return written(one) === written(other);
}

/** Whether a knob may have a value. */
export function allowed(value, { type, choices, minimum, exclusive_minimum, maximum }) {
  if (choices.includes(value)) return true;
  if (!Number.isFinite(value) || type === "string" || (type === "integer" && !Number.isInteger(value))) return false;
  return value >= (minimum ?? -Infinity) && value > (exclusive_minimum ?? -Infinity) && value <= (maximum ?? Infinity);
}

/** The fields of one plan. `onchange` is called when the user changes it. */
export class PlanPicker {
  constructor(model, legend, plan, onchange) {
    this.model = model;
    this.onchange = onchange;
    const modeId = unique("mode");
    this.way = unique("way");
    this.qualities = el("div", { class: "choices" });
    this.mode = el("select", { id: modeId, onchange: () => this.#changed({ mode: this.mode.value, knobs: {} }) },
      model.modes.map((mode) => el("option", { value: mode, text: mode })));
    this.summary = el("p", { class: "summary" });
    this.knobs = el("div", { class: "knobs" });
    this.byMode = el("div", {}, el("label", { for: modeId, class: "sr-only", text: `${legend}: mode` }), this.mode, this.summary,
      el("details", {}, el("summary", { text: `More for ${legend}` }), this.knobs));
    this.root = el("fieldset", { class: "plan" }, el("legend", { text: `Answer ${legend}` }),
      el("div", { class: "segments" }, this.#segment("Mode", "mode"), this.#segment("Quality", "quality")), this.byMode, this.qualities);
    this.set(plan);
  }

  /** Shows a plan. */
  set(plan) {
    this.value = plan.quality ? { quality: plan.quality } : { mode: plan.mode, knobs: { ...plan.knobs } };
    for (const input of this.root.querySelectorAll(`[name="${this.way}"]`)) input.checked = input.value === (plan.quality ? "quality" : "mode");
    this.byMode.hidden = Boolean(plan.quality);
    this.qualities.hidden = !plan.quality;
    if (plan.quality) this.#drawQualities();
    else this.#drawMode();
  }

  #changed(plan) {
    this.set(plan);
    this.onchange();
  }

  #segment(text, value) {
    const id = unique(value);
    const turn = () => this.#changed(value === "quality" ? { quality: Object.keys(this.model.quality.presets)[0] } : resolvedOr(this.value, this.model));
    return el("span", {}, el("input", { type: "radio", name: this.way, id, value, onchange: turn }), el("label", { for: id, text }));
  }

  #drawQualities() {
    const { presets, missing } = this.model.quality;
    const group = unique("quality");
    this.qualities.replaceChildren(
      ...Object.entries(presets).map(([name, plans]) => {
        const id = unique(name);
        const input = el("input", { type: "radio", name: group, id, value: name, onchange: () => this.#changed({ quality: name }) });
        input.checked = name === this.value.quality;
        const shown = plans.length > 1 ? `the fastest of ${plans.length} modes` : named(plans[0]);
        return el("span", { class: "choice" }, input, el("label", { for: id, title: plans.map(named).join("\n") }, el("b", { text: name }), el("small", { text: shown })));
      }),
      missing ? el("p", { class: "summary", text: `No other quality: ${missing}` }) : "",
    );
  }

  #drawMode() {
    const { mode } = this.value;
    const info = this.model.mode_info[mode];
    this.mode.value = mode;
    this.summary.textContent = info.summary.replaceAll("`", "");
    this.knobs.replaceChildren(...Object.entries(info.knobs).map(([name, knob]) => this.#knob(name, knob)));
  }

  #knob(name, knob) {
    const id = unique(name);
    const field = knob.type === "string" ? this.#choice(name, knob, id) : this.#number(name, knob, id);
    return el("div", { class: "knob" }, el("label", { for: id, text: name, title: knob.description }), field);
  }

  #choice(name, knob, id) {
    const options = ["", ...knob.choices].map((value) => el("option", { value, text: value || "default" }));
    const field = el("select", { id, onchange: () => this.#setKnob(name, field.value) }, options);
    field.value = this.value.knobs[name] ?? "";
    return field;
  }

  #number(name, knob, id) {
    const whole = knob.type === "integer", least = knob.minimum ?? knob.exclusive_minimum;
    const limits = knob.choices.length ? { type: "text", inputmode: "numeric", list: `${id}-list` } : { type: "number", step: whole ? 1 : "any" };
    const standing = knob.default ?? "not set";
    const hint = `${range(knob, least)}; default: ${standing}`;
    const field = el("input", { id, ...limits, placeholder: standing, title: hint, autocomplete: "off", onchange: () => {
      const value = number(field.value);
      field.setCustomValidity(value === "" || allowed(value, knob) ? "" : hint);
      this.#setKnob(name, field.validity.valid ? value : "");
    } });
    field.value = this.value.knobs[name] ?? "";
    if (!knob.choices.length) return field;
    return el("span", {}, field, el("datalist", { id: `${id}-list` }, knob.choices.map((value) => el("option", { value }))));
  }

  #setKnob(name, value) {
    const { [name]: _, ...others } = this.value.knobs;
    this.value.knobs = value === "" ? others : { ...others, [name]: value };
    this.onchange();
  }
}

function range(knob, least) {
  const from = knob.exclusive_minimum !== null ? `above ${least}` : `from ${least}`;
  return knob.maximum === null ? from : `${from} to ${knob.maximum}`;
}

const number = (text) => (text.trim() === "" || Number.isNaN(Number(text)) ? text.trim() : Number(text));

function resolvedOr(plan, model) {
  const { mode, knobs } = plan.quality ? model.quality.presets[plan.quality][0] : plan;
  return { mode, knobs: { ...knobs } };
}
