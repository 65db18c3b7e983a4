// The form in the address, behind the #. Browsers do not send that part, so no log has the prompt.

import { allowed } from "./plan.js";

/** The address of this page with what stands in the form. */
export function linkTo(form) {
  const plans = form.plans.map((plan) => JSON.stringify(plan));
  const fields = new URLSearchParams({ kind: form.kind, prompt: form.prompt, seed: form.seed, temperature: form.temperature, tokens: form.tokens });
  for (const plan of plans) fields.append("plan", plan);
  return `${location.href.split("#")[0]}#${fields}`;
}

/** What the address of this page restores, null if it holds nothing that this server's model can do. */
export function linked(model) {
  const fields = new URLSearchParams(location.hash.slice(1));
  if (!fields.has("prompt")) return null;
  const plans = fields.getAll("plan").map((text) => known(parsed(text), model)).filter((plan) => plan !== null).slice(0, 2);
  const text = (name) => fields.get(name) ?? "";
  return { kind: text("kind") === "plain" ? "plain" : "chat", prompt: text("prompt"), seed: text("seed"), temperature: text("temperature"), tokens: text("tokens"), plans };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A plan of a link without what this server's model does not know; null if nothing is left. */
function known(plan, model) {
  if (plan === null || typeof plan !== "object") return null;
  if (plan.quality !== undefined) return Object.hasOwn(model.quality.presets, plan.quality) ? { quality: plan.quality } : null;
  if (!model.modes.includes(plan.mode)) return null;
  const limits = model.mode_info[plan.mode].knobs;
  const knobs = Object.entries(plan.knobs ?? {}).filter(([name, value]) => Object.hasOwn(limits, name) && allowed(value, limits[name]));
  return { mode: plan.mode, knobs: Object.fromEntries(knobs) };
}
