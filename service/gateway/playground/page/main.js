// The page: asks what is served, runs what stands in the form, and draws what comes.

import { ApiError, Lost, generate, key, ready, served, states } from "./api.js";
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
const trouble = new Trouble(() => form && snippet());

startTheme();
boot();
byId("form").addEventListener("submit", (event) => (event.preventDefault(), run()));
byId("race").addEventListener("click", () => run(2));
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
  const link = linked(model);
  form = new Form(model, completed(link ?? initial(model), model), () => form && changed());
  byId("demo").hidden = model.weights.model !== "demo";
  frontier = new Frontier(byId("points"), model, (plan) => form.take(plan));
  byId("ways").replaceChildren(...Object.keys(WAYS).map((name) => el("button", { type: "button", "aria-pressed": "false", "data-way": name, onclick: () => ((way = name), snippet()), text: name })));
  snippet();
  const why = await reason(link);
  document.body.classList.remove("loading");
  busy(null);
  if (why) trouble.hint(why);
  else run(2, { priority: 9, timeout_s: 10 });
}

/** Why the page waits for a click, empty if it may race by itself. A link's prompt is a stranger's; a key has limits. */
async function reason(link) {
  if (link) return "The prompt comes from the link.";
  if (key.get()) return "Each request counts for your API key.";
  if (!form.state.prompt) return "Write a prompt.";
  return (await ready()) ? "" : "The service is busy.";
}

/** The colours of the states, for both themes, and the legend. */
function colour() {
  for (const [state, { light, dark }] of Object.entries(names)) document.documentElement.style.setProperty(`--${state}`, `light-dark(${light}, ${dark})`);
  byId("legend").replaceChildren(...Object.entries(names).map(([state, { label }]) => el("li", { class: state, text: label })));
}

/** The form has changed: the address follows if the server would take the form. */
function changed() {
  snippet();
  clearTimeout(addressed);
  if (!form.invalid) addressed = setTimeout(() => history.replaceState(null, "", linkTo(form.state)), 300);
}

/** The request as code, and the mark of the frontier. */
function snippet() {
  const [plan] = form.state.plans;
  frontier.draw(plan);
  const about = { url: location.href.split(/[?#]/)[0], locked: Boolean(key.get()), model: model.id };
  byId("code").textContent = WAYS[way](form.body(plan), about);
  for (const button of byId("ways").children) button.setAttribute("aria-pressed", String(button.dataset.way === way));
}

/** Empty lanes for the plans. Returns what brings back the lanes before. */
function prepare(plans) {
  const before = lanes, told = [...byId("verdict").childNodes];
  lanes = plans.map((plan, number) => new Lane(names, plans.length > 1 ? "AB"[number] : ""));
  lanes.forEach((lane, number) => {
    lane.onjump = (moment) => timeline.jump(moment);
    lane.open(named(plans[number]), new Tape(model.block_size));
  });
  show([]);
  return () => {
    lanes = before;
    show(told);
    timeline.open(lanes.map((lane) => lane.tape), false);
    timeline.seek(timeline.keys.length);
  };
}

function show(told) {
  byId("stage").hidden = !lanes.length;
  document.body.classList.toggle("race", lanes.length > 1);
  byId("lanes").replaceChildren(...lanes.map((lane) => lane.root));
  byId("verdict").replaceChildren(...told);
}

// --- running -------------------------------------------------------------------------------------

/** Runs the first plans of the form. `options`: fields for the race by which the page opens. */
async function run(count = 1, options = null) {
  if (running || !form || byId("run").disabled) return;
  if (form.invalid) return complain(form.invalid);
  const plans = form.state.plans.slice(0, count), race = count > 1;
  const restore = prepare(plans);
  trouble.clear();
  busy(new AbortController());
  if (!options && !isInView(byId("stage"))) byId("stage").scrollIntoView({ block: "start" });
  timeline.open(lanes.map((lane) => lane.tape), race || following());
  try {
    for (const [number, plan] of plans.entries()) await record(lanes[number], { ...body(plan, race), ...options }, race);
    if (race) arrive(plans);
  } catch (error) {
    if (!lanes[0].tape.steps.length) restore();
    if (options && error instanceof ApiError && error.status !== 401) trouble.hint("The service is busy.");
    else trouble.show(error, () => run(count));
  } finally {
    for (const lane of lanes) lane.tape.over = true;
    busy(null);
    timeline.grown();
  }
}

/** Shows the browser's words at a field, which may be behind "More". */
function complain(field) {
  const details = field.closest("details");
  if (details) details.open = true;
  field.reportValidity();
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
  lane.say("waiting");
  try {
    for await (const { event, data } of generate(body, signal)) {
      if (event === "step") tape.step(data);
      else if (event === "block") tape.chunk(data);
      else if (event === "done") tape.done(data);
      lane.say("decoding", "busy");
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
  for (const id of ["run", "race"]) byId(id).disabled = Boolean(controller);
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
