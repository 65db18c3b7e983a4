// The slider over all moments of one or two tapes, by forwards or by milliseconds, and what plays along it.

import { byId } from "./dom.js";

/** Milliseconds that a race by the clock lasts on the page, unless it took longer. */
const RACE_MS = 7000;

export class Timeline {
  /** `show(index of each tape, grown)` draws; `grown`: the slider has changed, too. */
  constructor(show) {
    Object.assign(this, { show, tapes: [], keys: [], at: 0, playing: false, live: false, clock: "forwards" });
    this.slider = byId("slider");
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value)));
    byId("play").addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    byId("back").addEventListener("click", () => this.seek(this.at - 1));
    byId("forth").addEventListener("click", () => this.seek(this.at + 1));
    for (const input of document.getElementsByName("clock")) input.addEventListener("change", () => this.#turn(input.value));
  }

  /** New tapes, which may still grow. `live`: follow the newest moment. */
  open(tapes, live) {
    this.pause();
    Object.assign(this, { tapes, live, at: 0, keys: [] });
    this.grown();
  }

  /** The tapes have new moments. */
  grown() {
    const end = this.at >= this.keys.length - 1;
    const known = this.tapes.flatMap((tape) => tape.moments.map((moment) => this.#key(moment)));
    this.keys = [...new Set(known)].sort((one, other) => one - other);
    this.slider.max = Math.max(0, this.keys.length - 1);
    for (const id of ["slider", "play", "back", "forth"]) byId(id).disabled = this.keys.length < 2;
    if (this.live && end) this.at = Math.max(0, this.keys.length - 1);
    this.#draw(true);
  }

  /** Where a moment stands on the slider, 0 to 1. */
  place(moment) {
    const most = this.clock === "ms" ? this.keys.at(-1) : this.keys.length - 1;
    return (this.clock === "ms" ? moment.ms : this.#indexOf(this.#key(moment))) / (most || 1);
  }

  /** Where the slider stands, 0 to 1. */
  get now() {
    const most = this.clock === "ms" ? this.keys.at(-1) : this.keys.length - 1;
    return (this.clock === "ms" ? (this.keys[this.at] ?? 0) : this.at) / (most || 1);
  }

  seek(at) {
    this.pause();
    this.live = false;
    this.#go(at);
  }

  /** Goes to a moment of a tape. */
  jump(moment) {
    this.seek(this.#indexOf(this.#key(moment)));
  }

  play() {
    if (this.at >= this.keys.length - 1) this.at = 0;
    this.playing = true;
    this.live = false;
    this.#button();
    this.#tick();
  }

  pause() {
    clearTimeout(this.timer);
    this.playing = false;
    this.#button();
  }

  /** How many times slower than it was a race by the clock is shown; 1: as fast. */
  get slowness() {
    return Math.max(1, RACE_MS / (this.keys.at(-1) || RACE_MS));
  }

  #turn(clock) {
    const ends = this.at >= this.keys.length - 1;
    this.clock = clock;
    this.at = 0;
    this.grown();
    if (ends) this.#go(this.keys.length - 1);
  }

  #key(moment) {
    return this.clock === "ms" ? moment.ms : moment.key;
  }

  #indexOf(key) {
    let low = 0, high = this.keys.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.keys[middle] <= key) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  #go(at) {
    this.at = Math.max(0, Math.min(at, this.keys.length - 1));
    this.#draw();
  }

  #tick() {
    this.timer = setTimeout(() => {
      if (this.at < this.keys.length - 1) this.#go(this.at + 1);
      else if (this.tapes.every((tape) => tape.over)) return this.pause();
      this.#tick();
    }, this.#pause());
  }

  #pause() {
    const [now, next] = [this.keys[this.at], this.keys[this.at + 1]];
    if (next === undefined) return 30;
    if (this.clock === "ms") return (next - now) * this.slowness;
    return (1000 / (Number(byId("pace").value) || 60)) * (next - now < 0.3 ? 0.3 : Math.min(1, next - now));
  }

  #draw(grown = false) {
    const key = this.keys[this.at] ?? 0;
    this.slider.value = this.at;
    this.slider.setAttribute("aria-valuetext", this.clock === "ms" ? `${key.toFixed(1)} milliseconds` : `after forward ${Math.floor(key)}`);
    byId("clock-now").textContent = this.clock === "ms" ? `${key.toFixed(1)} ms` : `forward ${Math.floor(key)}`;
    byId("slowness").textContent = this.clock === "ms" && this.slowness > 1 ? `shown ${Math.round(this.slowness)} times slower` : "";
    this.show(this.tapes.map((tape) => last(tape.moments, (moment) => this.#key(moment) <= key)), grown);
  }

  #button() {
    byId("play").textContent = this.playing ? "Pause" : "Play";
  }
}

/** The index of the last moment that fits; moments are in order. */
function last(moments, fits) {
  let low = 0, high = moments.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (fits(moments[middle])) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}
