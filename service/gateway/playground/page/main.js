// The page: asks what is served, runs what stands in the form, and draws what comes.

import { Lost, generate, key, served, states } from "./api.js";
import { WAYS } from "./copy.js";
import { byId, el } from "./dom.js";
import { Form, completed, initial } from "./form.js";
import { Frontier } from "./frontier.js";
import { backbone, decoded, Lane } from "./lane.js";
import { linked, linkTo } from "./link.js";
import { named } from "./plan.js";
import { verdict } from "./race.js";
import { Tape } from "./tape.js";
import { startTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { Trouble } from "./trouble.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
let model, names, form, frontier, addressed, way = "curl", running = null, lanes = [];
const timeline = new Timeline(draw);
const trouble = new Trouble(() => form && changed());

startTheme();
boot();
byId("form").addEventListener("submit", (event) => (event.preventDefault(), run()));
byId("stop").addEventListener("click", () => running?.abort());
byId("link").addEventListener("click", () => copy(linkTo(form.state), byId("link")));
byId("copy").addEventListener("click", () => copy(byId("code").textContent, byId("copy")));
byId("pace").addEventListener("change", () => (timeline.live = following()));
document.addEventListener("keydown", shortcut);
addEventListener("hashchange", () => location.reload());

async function boot() {
  try {
    [model, names] = await Promise.all([served(), states()]);
  } catch (error) {
    return trouble.show(error, boot);
  }
  trouble.clear();
  byId("model").replaceChildren(el("b", { text: model.id }), ` block ${model.block_size}${model.mrp ? ", MRP" : ""}`);
  colour();
  form = new Form(model, completed(linked(model) ?? initial(model), model), () => form && changed());
  frontier = new Frontier(byId("points"), model, (plan) => form.take(plan));
  byId("ways").replaceChildren(...Object.keys(WAYS).map((name) => el("button", { type: "button", "aria-pressed": "false", "data-way": name, onclick: () => ((way = name), changed()), text: name })));
  prepare();
  changed();
  byId("run").disabled = false;
}

/** The colours of the states, for both themes, and the legend. */
function colour() {
  for (const [state, { light, dark }] of Object.entries(names)) document.documentElement.style.setProperty(`--${state}`, `light-dark(${light}, ${dark})`);
  byId("legend").replaceChildren(...Object.entries(names).map(([state, { label }]) => el("li", { class: state, text: label })));
}

/** The form has changed: the link, the snippets and the marks of the frontier follow. */
function changed() {
  const plans = form.state.plans;
  frontier.draw(plans);
  const about = { url: location.href.split(/[?#]/)[0], locked: Boolean(key.get()), model: model.id };
  byId("code").textContent = WAYS[way](form.body(plans.at(-1)), about);
  byId("of-plan").textContent = plans.length > 1 ? "of plan B" : "";
  for (const button of byId("ways").children) button.setAttribute("aria-pressed", String(button.dataset.way === way));
  clearTimeout(addressed);
  addressed = setTimeout(() => history.replaceState(null, "", linkTo(form.state)), 300);
  if (!running && lanes.length !== plans.length) prepare();
}

/** Empty lanes for the plans of the form. */
function prepare() {
  const { plans } = form.state;
  lanes = plans.map((plan, number) => new Lane(names, plans.length > 1 ? "AB"[number] : ""));
  lanes.forEach((lane, number) => {
    lane.onjump = (moment) => timeline.jump(moment);
    lane.open(named(plans[number]), new Tape(model.block_size));
    lane.say("");
  });
  byId("lanes").replaceChildren(...lanes.map((lane) => lane.root));
  byId("verdict").replaceChildren();
  timeline.open(lanes.map((lane) => lane.tape), false);
}

// --- running -------------------------------------------------------------------------------------

async function run() {
  if (running || !form) return;
  const { plans } = form.state, race = plans.length > 1;
  prepare();
  trouble.clear();
  busy(new AbortController());
  if (!isInView(byId("stage"))) byId("stage").scrollIntoView({ block: "start" });
  timeline.open(lanes.map((lane) => lane.tape), race || following());
  try {
    for (const [number, plan] of plans.entries()) await record(lanes[number], body(plan, race), race);
    if (race) arrive(plans);
  } catch (error) {
    trouble.show(error, run);
  } finally {
    for (const lane of lanes) lane.tape.over = true;
    busy(null);
    timeline.grown();
  }
}

/** Whether the upper part of an element stands in the upper half of the window. */
function isInView(element) {
  const { top } = element.getBoundingClientRect();
  return top > -40 && top < innerHeight / 2;
}

/** Two plans of a race share no cached prompt, so that neither has less to do. */
function body(plan, race) {
  return { ...form.body(plan), stream: true, stream_steps: true, ...(race ? { cache_salt: crypto.getRandomValues(new Uint32Array(2)).join("-") } : {}) };
}

async function record(lane, body, race) {
  const { tape } = lane, { signal } = running;
  lane.say("asks");
  try {
    for await (const { event, data } of generate(body, signal)) {
      if (event === "step") tape.step(data);
      else if (event === "block") tape.chunk(data);
      else if (event === "done") tape.done(data);
      lane.say("decodes", "busy");
      soon();
      if (!race && !timeline.playing && !timeline.live && timeline.at === 0 && tape.moments.length) timeline.play();
    }
    if (!tape.result) throw new Lost(`The connection was lost after ${tape.chunks.length} blocks. What came until then stays on the page.`);
    lane.say(ending(tape.result), "good");
    if (!race) announce(tape);
  } catch (error) {
    lane.say(signal.aborted ? "stopped" : "broken off", "bad");
    throw error;
  }
}

function arrive(plans) {
  byId("verdict").replaceChildren(...verdict(plans.map(named), lanes.map((lane) => lane.tape)));
  byId("say").textContent = byId("verdict").querySelector(".same").textContent;
  timeline.open(lanes.map((lane) => lane.tape), false);
  if (calm) timeline.seek(timeline.keys.length);
  else setTimeout(() => timeline.play());
}

const following = () => calm || byId("pace").value === "0";

const ending = ({ finish_reason }) => ({ stop: "complete", length: "stopped at the most tokens", timeout: "out of time" })[finish_reason] ?? finish_reason;

/** Tells screen readers the whole answer once. */
function announce(tape) {
  byId("say").textContent = `${decoded(tape.result)} tokens in ${backbone(tape.result)} forwards. The answer: ${tape.text}`;
}

function busy(controller) {
  running = controller;
  byId("run").disabled = Boolean(controller);
  byId("stop").disabled = !controller;
  byId("stage").setAttribute("aria-busy", String(Boolean(controller)));
}

let waiting = false;

/** Draws new moments with the next picture of the screen. */
function soon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    timeline.grown();
  });
}

function draw(indices, grown) {
  lanes.forEach((lane, number) => {
    if (grown) lane.chart.draw(lane.tape, (moment) => timeline.place(moment));
    lane.show(indices[number] ?? 0);
    lane.chart.mark(timeline.now);
  });
}

// --- the rest ------------------------------------------------------------------------------------

async function copy(text, button) {
  const before = button.textContent;
  await navigator.clipboard.writeText(text).then(() => (button.textContent = "Copied"), () => (button.textContent = "Not allowed here"));
  setTimeout(() => (button.textContent = before), 1500);
}

function shortcut(event) {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  else if (event.key === "Escape") running?.abort();
}
