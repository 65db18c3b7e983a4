// The calibration's frontier: accuracy against tokens per forward, a point for each plan. A plan can be picked.

import { el, svg } from "./dom.js";
import { named, same } from "./plan.js";

const WIDTH = 480, HEIGHT = 270, LEFT = 52, RIGHT = 18, TOP = 26, LOW = 42;

/** Draws the frontier of a model. `pick(plan)`: a point was chosen. */
export class Frontier {
  constructor(root, model, pick) {
    Object.assign(this, { root, model, pick });
    this.rows = [...model.quality.frontier].sort((one, other) => one.tokens_per_forward - other.tokens_per_forward);
    this.lossless = model.quality.presets.lossless.filter((plan) => !this.rows.some((row) => same(row.plan, plan, model)));
  }

  /** Draws it with the chosen plan marked. */
  draw(plan) {
    const { measured, missing } = this.model.quality;
    if (!this.rows.length) return this.root.replaceChildren(el("p", { class: "summary", text: missing ?? "The calibration has no frontier." }));
    const counts = this.rows.map((row) => row.tokens_per_forward);
    this.least = Math.min(1, ...counts);
    this.most = Math.max(1.5, ...counts) + 0.1;
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "frontier", role: "img", "aria-label": "Accuracy against tokens per forward; the list beside it has the same plans" },
      this.#axes(), this.#line(), this.rows.map((row, number) => this.#point(row, number, same(plan, row.plan, this.model))));
    this.root.replaceChildren(
      el("div", { class: "measured" }, picture, el("ol", {},
        this.lossless.map((row) => this.#entry(row, "=", plan, row, "the same text as static")),
        this.rows.map((row, number) => this.#entry(row.plan, number + 1, plan, row, `accuracy ${(row.accuracy * 100).toFixed(1)} %`)))),
      el("p", { class: "summary", text: `Measured ${measured.at} on ${measured.prompts} prompts (${measured.scorer}), ${measured.dtype}. The engine runs the fastest mode of a quality by its own clock. Choose a mode, then Run or Race.` }),
    );
  }

  #x(count) {
    return LEFT + ((count - this.least) / (this.most - this.least)) * (WIDTH - LEFT - RIGHT);
  }

  #y(accuracy) {
    return TOP + (1 - accuracy) * (HEIGHT - TOP - LOW);
  }

  #axes() {
    const counts = Array.from({ length: 20 }, (_, number) => number / 2).filter((count) => count >= this.least && count <= this.most);
    return [
      ...[0, 0.25, 0.5, 0.75, 1].flatMap((level) => [
        svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: this.#y(level), y2: this.#y(level), class: "level" }),
        svg("text", { x: LEFT - 8, y: this.#y(level) + 4, class: "tick end", text: `${level * 100} %` }),
      ]),
      ...counts.map((count) => svg("text", { x: this.#x(count), y: HEIGHT - LOW + 18, class: "tick middle", text: count.toLocaleString("en") })),
      svg("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, class: "tick middle", text: "tokens per forward" }),
      svg("text", { x: 2, y: 10, class: "tick", text: "accuracy" }),
    ];
  }

  #line() {
    const points = this.rows.map((row) => `${this.#x(row.tokens_per_forward)},${this.#y(row.accuracy)}`);
    return svg("polyline", { points: points.join(" "), class: "front" });
  }

  #point(row, number, chosen) {
    const [x, y] = [this.#x(row.tokens_per_forward), this.#y(row.accuracy)];
    return svg("g", { class: `point${chosen ? " chosen" : ""}`, onclick: () => this.pick(row.plan) },
      svg("title", { text: named(row.plan) }),
      this.#presets(row.plan).length ? svg("circle", { cx: x, cy: y, r: 14, class: "ring" }) : null,
      svg("circle", { cx: x, cy: y, r: 10, class: "dot" }),
      svg("text", { x, y: y + 4, class: "number", text: String(number + 1) }));
  }

  #entry(plan, sign, chosen, row, accuracy) {
    const pressed = String(same(plan, chosen, this.model));
    return el("li", {}, el("button", { type: "button", class: "entry", "aria-pressed": pressed, onclick: () => this.pick(plan) },
      el("span", { class: "number", text: String(sign) }),
      el("span", {}, el("b", { text: named(plan) }), this.#presets(plan).map((name) => el("em", { text: name })),
        el("small", { text: `${accuracy}, ${row.tokens_per_forward.toFixed(2)} tokens per forward` }))));
  }

  /** The names of the presets that have this plan. */
  #presets(wanted) {
    return Object.entries(this.model.quality.presets)
      .filter(([, plans]) => plans.some((plan) => same(plan, wanted, this.model)))
      .map(([name]) => name);
  }
}
