// What two answers have in common, and their numbers beside each other.

import { el } from "./dom.js";
import { backbone, decoded } from "./lane.js";

const ROWS = [
  ["forwards of the model", (result) => backbone(result), 0, "least"],
  ["forwards of MRP", (result) => result.stats.forwards.mrp, 0],
  ["tokens, end included", (result) => decoded(result), 0],
  ["tokens per forward", (result) => result.stats.tokens_per_forward, 2, "most"],
  ["drafts accepted", ({ stats }) => (stats.drafts_proposed ? `${stats.drafts_accepted} of ${stats.drafts_proposed}` : "no drafts")],
  ["drafts accepted per forward", (result) => result.stats.drafts_accepted / backbone(result), 2, "most"],
  ["version of MRP", ({ stats }) => stats.mrp_version, 0],
  ["tokens masked again", ({ stats }) => stats.remasked, 0],
  ["ms to the first block", ({ stats }) => stats.first_block_ms, 1, "least"],
  ["ms in all", ({ stats }) => stats.total_ms, 1, "least"],
];

/** The table of a race, and whether both answers are the same. */
export function verdict(names, tapes) {
  const results = tapes.map((tape) => tape.result);
  const at = difference(tapes[0].tokenIds, tapes[1].tokenIds);
  const words = at < 0 ? "Identical output" : `Outputs differ from token ${at + 1} on`;
  return [
    el("p", { class: `same ${at < 0 ? "yes" : "no"}`, text: words }),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Numbers of the race" },
      el("table", {},
        el("thead", {}, el("tr", {}, el("td"), names.map((name, lane) => el("th", { scope: "col" }, el("span", { class: "letter", text: "AB"[lane] }), ` ${name}`)))),
        el("tbody", {}, ROWS.map((row) => line(row, results))))),
    el("p", { class: "summary", text: "Both ran alone, one after the other, without each other's cached prompt. Milliseconds count from the arrival at the server. They vary from run to run; forwards do not." }),
  ];
}

function line([name, read, digits, better], results) {
  const values = results.map(read);
  const best = better && values[0] !== values[1] ? Math[better === "least" ? "min" : "max"](...values) : null;
  return el("tr", {}, el("th", { scope: "row", text: name }), values.map((value) => el("td", { class: value === best ? "best" : "", text: typeof value === "number" ? value.toFixed(digits) : String(value ?? "–") })));
}

function difference(one, other) {
  for (let at = 0; at < Math.max(one.length, other.length); at += 1) if (one[at] !== other[at]) return at;
  return -1;
}
