// The record of one answer: its moments, made only from the steps of the API's trace. Knows nothing of the page.
// dev/pictures/filling.py does the same for the pictures; a test compares the two.

const MASKED = { state: "masked", history: [] };

/** One answer while it comes. `moments`: what to show, in order; each has the cells of the block in work. */
export class Tape {
  constructor(blockSize) {
    this.blockSize = blockSize;
    this.clear();
  }

  clear() {
    Object.assign(this, { steps: [], chunks: [], result: null, moments: [], forwards: 0, cells: [], block: -1 });
    Object.assign(this, { starts: [], between: 0 });
  }

  /** A `step` event. A number that comes again replaces the steps from there on: a replica was lost. */
  step(step) {
    const again = this.steps.findIndex((one) => one.block === step.block && one.step >= step.step);
    if (again < 0) return this.#take(step);
    const { chunks, steps } = this;
    this.clear();
    this.chunks = chunks;
    for (const one of [...steps.slice(0, again), step]) this.#take(one);
  }

  /** A `block` event. */
  chunk(chunk) {
    this.chunks[chunk.index] = chunk;
  }

  /** The `done` event. */
  done(result) {
    this.result = result;
  }

  /** The answer's text so far, as the API sent it. */
  get text() {
    return this.chunks.map((chunk) => chunk?.text ?? "").join("");
  }

  /** The answer's token ids so far. */
  get tokenIds() {
    return this.chunks.flatMap((chunk) => chunk?.token_ids ?? []);
  }

  /** How many positions of a block belong to the prompt and the answer; all while that is open. */
  length(block) {
    const chunk = this.chunks[block];
    if (!this.result || !chunk || block < this.block) return this.blockSize;
    return this.held(block) + chunk.token_ids.length + (this.result.finish_reason === "stop" ? 1 : 0);
  }

  /** How many positions of a block hold the prompt. */
  held(block) {
    return block ? 0 : (this.steps[0]?.prompt_positions ?? 0);
  }

  /** How many positions of the answer are fixed in a moment. */
  fixed({ block, cells }) {
    const open = ["prompt", "masked", "draft", "revoked"];
    const here = cells.slice(0, this.length(block)).filter((cell) => !open.includes(cell.state)).length;
    return (block ? block * this.blockSize - this.held(0) : 0) + here;
  }

  /** The number of the last moment of a block. */
  endOf(block) {
    return (this.starts[block + 1] ?? this.moments.length) - 1;
  }

  #take(step) {
    this.steps.push(step);
    if (step.block !== this.block) this.#open(step);
    this.#settle();
    const names = (pick) => step.texts[pick[1]] ?? "";
    if (step.drafted.length) {
      for (const pick of step.drafted) this.#write(pick, "draft", names(pick), step);
      this.#moment(step, 0.5, this.moments.at(-1).ms);
    }
    const backbone = step.kind === "denoise" || step.kind === "verify";
    this.forwards += backbone;
    this.between = backbone ? 0 : this.between + 1;
    this.#unmask(step);
    step.revealed.forEach((pick, rank) => this.#write(pick, source(step, rank), names(pick), step));
    this.#moment(step, this.between / 1024, step.ms);
  }

  #open(step) {
    this.block = step.block;
    this.starts[step.block] = this.moments.length;
    this.cells = Array.from({ length: this.blockSize }, (_, position) =>
      position < this.held(step.block) ? { state: "prompt", history: [] } : MASKED,
    );
    if (!this.moments.length) this.#moment(null, 0, 0);
  }

  #settle() {
    this.cells = this.cells.map((cell) =>
      cell.state === "revoked" ? { ...MASKED, history: cell.history } : cell.fresh ? { ...cell, fresh: false } : cell,
    );
  }

  #unmask(step) {
    this.cells = this.cells.map((cell, position) => {
      if (step.revoked.includes(position)) return { ...cell, state: "revoked", fresh: true, history: this.#told(cell, "revoked", step) };
      return cell.state === "draft" ? { ...MASKED, history: cell.history } : cell;
    });
    if (step.moved) this.cells = step.moved.map((source) => this.cells[source] ?? MASKED);
  }

  #write([position, token, confidence], state, text, step) {
    const cell = { ...this.cells[position], confidence, text };
    this.cells[position] = { state, token, text, confidence, fresh: true, history: this.#told(cell, state, step) };
  }

  #told(cell, what, step) {
    const forward = this.forwards + (what === "draft" ? 1 : 0);
    return [...cell.history, { what, forward, text: cell.text, confidence: cell.confidence, ms: step.ms }];
  }

  #moment(step, part, ms) {
    const shown = step?.drafted.length && part === 0.5 ? [] : (step?.revealed ?? []);
    const confidences = shown.map((pick) => pick[2]);
    this.moments.push({
      block: Math.max(0, this.block),
      cells: [...this.cells],
      forwards: this.forwards,
      key: this.forwards + part,
      ms,
      revealed: shown.map((_, rank) => source(step, rank)),
      kind: step?.kind ?? "start",
      least: confidences.length ? Math.min(...confidences) : null,
      mean: confidences.length ? confidences.reduce((a, b) => a + b) / confidences.length : null,
    });
  }
}

function source(step, rank) {
  if (step.kind === "mrp") return "mrp";
  return rank < step.accepted ? "accepted" : "backbone";
}
