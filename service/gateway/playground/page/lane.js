// One answer on the page: its text, the cells of the block in work, its numbers and curves.

import { Chart } from "./chart.js";
import { el } from "./dom.js";

const COLUMNS = 16;

/** A lane. `states`: names of the states; `letter`: A or B in a race, else empty. */
export class Lane {
  constructor(states, letter = "") {
    this.states = states;
    this.title = el("h2", { class: "title" });
    this.status = el("span", { class: "status" });
    this.numbers = el("dl", { class: "numbers" });
    this.bar = el("div", { class: "bar", "aria-hidden": "true" });
    this.meaning = el("p", { class: "summary" });
    this.flow = el("p", { class: "flow", "aria-hidden": "true" });
    this.plain = el("p", { class: "sr-only", "data-answer": letter || "A" });
    this.cells = el("div", { class: "cells", role: "group", "aria-label": "Cells of the block" });
    this.where = el("span", { class: "where" });
    this.detail = el("div", { class: "detail" });
    this.chart = new Chart();
    this.root = el("article", { class: "lane", "data-lane": letter || "A" },
      el("header", {}, letter ? el("span", { class: "letter", text: letter }) : null, this.title, this.status),
      this.numbers, this.bar, this.meaning,
      el("div", { class: "answer" }, this.flow, this.plain),
      el("div", { class: "block" }, this.where, this.cells, this.detail),
      el("figure", {}, el("figcaption", {}, "Confidence of what each step revealed: ", el("b", { class: "least", text: "lowest" }), " and ", el("b", { class: "mean", text: "mean" }), ". Below: the number of tokens."), this.chart.root));
    this.cells.addEventListener("keydown", (event) => this.#walk(event));
  }

  /** A new answer. */
  open(name, tape) {
    this.tape = tape;
    this.index = 0;
    this.chosen = null;
    this.boxes = [];
    this.blocks = [];
    this.title.textContent = name;
    this.flow.replaceChildren();
    this.cells.replaceChildren();
    this.detail.replaceChildren(el("span", { class: "hint", text: "Point at a cell, or use the arrow keys, to see its history." }));
    this.say("waiting");
    this.show(0);
  }

  /** Its state in a word. */
  say(word, tone = "") {
    this.status.textContent = word;
    this.status.className = `status ${tone}`;
  }

  /** Shows a moment by its number. */
  show(index) {
    const { tape } = this;
    this.index = Math.max(0, Math.min(index, tape.moments.length - 1));
    const moment = tape.moments[this.index];
    if (!moment) return this.#empty();
    this.#text(moment);
    this.#cells(moment);
    this.#numbers(moment);
    if (this.chosen !== null) this.#tell(this.chosen);
  }

  #empty() {
    const waiting = { block: 0, cells: Array(this.tape.blockSize).fill({ state: "masked", history: [] }) };
    this.plain.textContent = "";
    this.#cells(waiting);
    this.#numbers({ ...waiting, forwards: 0, ms: 0 });
  }

  // --- text ------------------------------------------------------------------------------------

  #text(moment) {
    const { tape } = this;
    const done = this.index >= tape.endOf(moment.block) && (tape.result || tape.chunks[moment.block]);
    const count = moment.block + (done ? 1 : 0);
    while (this.blocks.length > count) this.blocks.pop().remove();
    while (this.blocks.length < count) {
      const made = this.#flowing(this.blocks.length);
      this.flow.append(made);
      this.blocks.push(made);
    }
    this.plain.textContent = tape.chunks.slice(0, count).map((chunk) => chunk?.text ?? "").join("");
    this.flow.classList.toggle("nothing", !count);
  }

  /** A finished block as text, a mark for each token. */
  #flowing(block) {
    const { tape } = this;
    const end = tape.moments[tape.endOf(block)], chunk = tape.chunks[block], from = tape.held(block);
    const cells = end.cells.slice(from, from + (chunk?.token_ids.length ?? tape.blockSize));
    const pieces = cells.map((cell) => cell.text ?? "");
    if (chunk && pieces.join("") !== chunk.text) return el("span", { class: "token" }, el("bdi", { text: chunk.text }));
    return el("span", {}, cells.map((cell, number) => {
      const mark = el("span", { class: `token ${cell.state}`, onclick: () => this.onjump?.(this.#firstWith(block, from + number)) }, el("bdi", { text: pieces[number] }));
      shade(mark, cell);
      return mark;
    }));
  }

  /** The moment in which a position got its last token. */
  #firstWith(block, position) {
    const { moments } = this.tape;
    let at = this.tape.endOf(block);
    while (at > this.tape.starts[block] && !moments[at].cells[position].fresh) at -= 1;
    this.chosen = position;
    return moments[at];
  }

  // --- cells -----------------------------------------------------------------------------------

  #cells(moment) {
    const { tape } = this;
    if (this.boxes.length !== tape.blockSize) this.#makeCells();
    const length = tape.length(moment.block);
    moment.cells.forEach((cell, position) => this.#draw(this.boxes[position], cell, position, position >= length));
    const known = tape.result ? ` of ${tape.block + 1}` : "";
    this.where.textContent = `Block ${moment.block + 1}${known}`;
  }

  #makeCells() {
    const wide = Math.min(COLUMNS, this.tape.blockSize);
    this.cells.style.setProperty("--wide", wide);
    this.cells.style.setProperty("--narrow", Math.min(8, wide));
    this.cells.style.setProperty("--least", Math.min(4, wide));
    this.boxes = Array.from({ length: this.tape.blockSize }, (_, position) =>
      el("button", { type: "button", tabindex: position ? -1 : 0, onfocus: () => this.#choose(position), onpointerenter: () => this.#choose(position), onclick: () => this.#choose(position) }, el("bdi", { class: "text" })));
    this.cells.replaceChildren(...this.boxes);
  }

  #draw(box, cell, position, beyond) {
    const state = beyond && cell.state !== "prompt" ? "beyond" : cell.state;
    box.className = `cell ${state}${cell.fresh && !beyond ? " fresh" : ""}${position === this.chosen ? " chosen" : ""}`;
    const text = ["masked", "prompt", "beyond"].includes(state) ? "" : visible(cell.text);
    box.firstChild.textContent = text;
    box.classList.toggle("long", text.length > 6);
    box.setAttribute("aria-label", `Position ${position + 1}: ${this.#words(cell, beyond)}`);
    shade(box, cell);
  }

  #words(cell, beyond) {
    if (beyond) return "after the end";
    const { label } = this.states[cell.state];
    return cell.text === undefined ? label : `${cell.text.trim() || "space"}, ${label}, confidence ${percent(cell.confidence)}`;
  }

  #walk(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: COLUMNS / 2, ArrowUp: -COLUMNS / 2, Home: -1e6, End: 1e6 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const now = this.boxes.indexOf(document.activeElement);
    this.boxes[Math.max(0, Math.min(this.boxes.length - 1, now + moves[event.key]))].focus();
  }

  #choose(position) {
    this.chosen = position;
    this.boxes.forEach((box, number) => {
      box.tabIndex = number === position ? 0 : -1;
      box.classList.toggle("chosen", number === position);
    });
    this.#tell(position);
  }

  #tell(position) {
    const moment = this.tape.moments[this.index];
    const cell = moment?.cells[position] ?? { state: "masked", history: [] };
    const beyond = moment && position >= this.tape.length(moment.block);
    const facts = cell.token === undefined ? [] : [["token", cell.token], ["confidence", percent(cell.confidence)]];
    this.detail.replaceChildren(
      el("b", { class: "about" }, `Position ${position + 1} `, cell.text === undefined || beyond ? "" : el("bdi", { class: "piece", text: visible(cell.text) })),
      el("span", { class: `state ${cell.state}`, text: beyond ? "after the end of the answer" : this.states[cell.state].label }),
      ...facts.map(([name, value]) => el("span", { class: "fact" }, `${name} `, el("b", { text: String(value) }))),
      el("ol", {}, told(cell.history).map((one) => el("li", {}, `${one.when}: `, el("b", { class: `state ${one.what}`, text: this.states[one.what].label }), " ", el("bdi", { text: visible(one.text ?? "") }), ` ${percent(one.confidence)}`))));
  }

  // --- numbers ---------------------------------------------------------------------------------

  #numbers(moment) {
    const { tape } = this;
    const all = tape.result && this.index === tape.moments.length - 1;
    const forwards = all ? backbone(tape.result) : moment.forwards;
    const tokens = all ? decoded(tape.result) : tape.fixed(moment);
    const ratio = forwards ? tokens / forwards : 0;
    const ms = all ? tape.result.stats.total_ms : moment.ms;
    const facts = [["forwards", forwards], ["tokens", tokens], ["tokens per forward", ratio.toFixed(2)], ["ms", ms ? ms.toFixed(ms < 100 ? 1 : 0) : "0"]];
    this.numbers.replaceChildren(...facts.map(([name, value]) => el("div", { "data-number": name }, el("dt", { text: name }), el("dd", { text: String(value) }))));
    this.bar.style.setProperty("--part", forwards / Math.max(1, forwards, tokens));
    this.meaning.textContent = meaning(ratio);
  }
}

/** Tokens per forward in words. */
function meaning(ratio) {
  if (ratio > 1) return `${ratio.toFixed(2)} times fewer forwards than one per token`;
  return ["no forward yet", "one forward per token"][ratio] ?? "more forwards than one per token";
}

/** A cell's history, in which forwards that did the same follow each other in one line. */
function told(history) {
  const lines = [];
  for (const one of history) {
    const before = lines.at(-1);
    if (before?.what === one.what && before.text === one.text) Object.assign(before, { confidence: one.confidence, when: `forwards ${before.forward} to ${one.forward}` });
    else lines.push({ ...one, when: `forward ${one.forward}` });
  }
  return lines;
}

/** Forwards of the backbone that decoded tokens. */
export const backbone = ({ stats }) => stats.forwards.denoise + stats.forwards.verify;

/** Tokens decoded, the end token included. */
export const decoded = ({ usage, finish_reason }) => usage.completion_tokens + (finish_reason === "stop" ? 1 : 0);

export const percent = (share) => (share === undefined ? "" : `${(share * 100).toFixed(share > 0.999 ? 2 : 1)} %`);

/** A token's text with its white space made visible. */
const visible = (text) => text.replace(/^ /, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥");

function shade(node, cell) {
  node.style.setProperty("--sure", cell.confidence === undefined ? 0 : Math.max(0, Math.min(1, cell.confidence)));
}
