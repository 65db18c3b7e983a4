// Light, dark, or as the system says.

import { byId } from "./dom.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };

/** Takes the theme of the last visit, and lets the button change it. */
export function startTheme() {
  set(localStorage.getItem("mrp-serve-theme") ?? "auto");
  byId("theme").addEventListener("click", () => set(NEXT[document.documentElement.dataset.theme]));
}

function set(theme) {
  const known = theme in NEXT ? theme : "auto";
  document.documentElement.dataset.theme = known;
  byId("theme").textContent = `Theme: ${known}`;
  localStorage.setItem("mrp-serve-theme", known);
}
