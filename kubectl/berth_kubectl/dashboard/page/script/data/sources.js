// What the page reads, and for which view. A browser opens six connections to a server, for all its tabs together:
// so a view watches only what it shows, and a hidden tab watches nothing.

import { Collection } from "./collection.js";
import { context } from "./context.js";
import { noteGap, toNode, withoutLinks } from "./fleet.js";
import { HolderIndex, toHolder } from "./holders.js";
import { Poll } from "./poll.js";
import { toQueued } from "./queue.js";
import { explanationPath, isNoPod } from "./requests.js";

const HIDDEN_AFTER_MS = 20000;

export const holderIndex = new HolderIndex();
export const fleet = new Collection("fleet", {
  toRow: toNode,
  parse: (text) => JSON.parse(withoutLinks(text)),
  listing: noteGap,
});
export const holders = new Collection("holders", {
  toRow: toHolder,
  changed: (before, after) => holderIndex.changed(before, after),
});
export const queue = new Collection("queue", { toRow: toQueued });
export const explanation = new Poll(2000, isNoPod);
export const doctor = new Poll(30000);

const NAMESPACED = new Set([holders, queue]);
const ALL = [fleet, holders, queue, explanation, doctor];
const NEEDS = {
  fleet: [fleet, holders],
  queue: [queue],
  holders: [holders, fleet],
  pod: [explanation],
  health: [doctor],
};

let wanted = { view: "", namespace: "", name: "" };
let hiding = 0;
const contextNamespace = async () => (await context).namespace;

/** Return the collections that a view shows. */
export function sourcesOf(view) {
  return NEEDS[view] ?? [];
}

/** Read what a view needs: `{view, namespace, name}`; the context's namespace is read where all are refused. */
export function show(what) {
  wanted = what;
  if (!document.hidden) apply();
}

function apply() {
  const needed = sourcesOf(wanted.view);
  for (const each of ALL) {
    if (!needed.includes(each)) each.stop();
    else if (each === explanation) each.start(explanationPath(wanted.namespace, wanted.name));
    else if (each === doctor) each.start("/api/doctor");
    else if (NAMESPACED.has(each)) each.start(wanted.namespace, contextNamespace);
    else each.start();
  }
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) hiding = setTimeout(() => ALL.forEach((each) => each.stop()), HIDDEN_AFTER_MS);
  else apply();
});
