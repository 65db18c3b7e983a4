// The two small pictures of a lane: what each forward fixed, and how sure it was.

import { svg } from "./dom.js";

const WIDTH = 640, CURVES = 64, BARS = 34, TOP = 6, LOW = TOP + CURVES + 8;

/** Draws a tape along the keys of the slider. */
export class Chart {
  constructor() {
    this.cursor = svg("line", { y1: 0, y2: LOW + BARS, class: "cursor" });
    this.root = svg("svg", { viewBox: `0 0 ${WIDTH} ${LOW + BARS + 2}`, preserveAspectRatio: "none", class: "chart", role: "img" });
  }

  /** `place(moment)`: where a moment stands, 0 to 1. */
  draw(tape, place) {
    const known = tape.moments.filter((moment) => moment.least !== null);
    const x = (moment) => 4 + place(moment) * (WIDTH - 8);
    const y = (confidence) => TOP + (1 - confidence) * CURVES;
    const line = (name) => known.map((moment) => `${x(moment).toFixed(1)},${y(moment[name]).toFixed(1)}`).join(" ");
    const most = Math.max(2, ...known.map((moment) => moment.revealed.length));
    this.root.replaceChildren(
      ...[0, 0.5, 1].map((level) => svg("line", { x1: 0, x2: WIDTH, y1: y(level), y2: y(level), class: "level" })),
      ...known.flatMap((moment) => bar(moment, x(moment), BARS / most)),
      svg("polyline", { points: line("mean"), class: "curve mean" }),
      svg("polyline", { points: line("least"), class: "curve least" }),
      this.cursor,
    );
    this.root.setAttribute("aria-label", words(known));
  }

  /** Moves the mark to a place, 0 to 1. */
  mark(place) {
    const x = 4 + place * (WIDTH - 8);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
  }
}

function bar(moment, x, unit) {
  return moment.revealed.map((state, rank) =>
    svg("rect", { x: x - 2.5, y: LOW + BARS - (rank + 1) * unit + 0.5, width: 5, height: Math.max(1, unit - 1), class: `fill ${state}` }),
  );
}

function words(known) {
  if (!known.length) return "Nothing is revealed yet.";
  const least = Math.min(...known.map((moment) => moment.least));
  return `${known.length} steps revealed tokens. The least confidence was ${Math.round(least * 100)} %.`;
}
