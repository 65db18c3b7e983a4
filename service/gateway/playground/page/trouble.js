// What went wrong, as the API words it, and the question for an API key.

import { ApiError, Lost, key } from "./api.js";
import { byId, el } from "./dom.js";

/** Shows errors. `unlocked()` is called when the user has given a key. */
export class Trouble {
  constructor(unlocked) {
    this.unlocked = unlocked;
    byId("key-form").addEventListener("submit", (event) => this.#take(event));
  }

  clear() {
    byId("notice").replaceChildren();
  }

  /** Says why nothing runs yet. */
  hint(why) {
    byId("notice").replaceChildren(el("p", { class: "card" }, `${why} Press Run or Race.`));
  }

  /** Shows an error. `again`: what to do when the user wants to try again, or has given a key. */
  show(error, again) {
    if (error.name === "AbortError") return;
    if (error instanceof ApiError && error.status === 401) return this.#askForKey(error, again);
    if (!(error instanceof ApiError || error instanceof Lost)) console.error(error);
    const facts = [error.code, error.param && `field ${error.param}`, error.requestId && `request ${error.requestId}`];
    const later = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
    byId("notice").replaceChildren(
      el("div", { class: "error" },
        el("p", {}, el("bdi", { text: error.message }), later),
        el("p", { class: "facts", text: facts.filter(Boolean).join(" · ") }),
        el("button", { type: "button", onclick: again, text: "Try again" })));
  }

  #askForKey(error, again) {
    this.pending = again;
    key.set("");
    byId("key-form").hidden = false;
    byId("key-why").textContent = error.message;
    byId("key").focus();
  }

  #take(event) {
    event.preventDefault();
    key.set(byId("key").value.trim());
    byId("key").value = "";
    byId("key-form").hidden = true;
    this.pending();
    this.unlocked();
  }
}
