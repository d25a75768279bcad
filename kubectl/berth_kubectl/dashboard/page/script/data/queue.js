// Pods that wait, and the reasons in their messages.

import { keyOf } from "./collection.js";

/** Return the row of a QueuedPod. */
export function toQueued(object) {
  const { metadata, ...pod } = object;
  const { name, namespace = "", creationTimestamp } = metadata;
  return { ...pod, key: keyOf(metadata), name, namespace, created: creationTimestamp ?? "", reasons: reasonsOf(pod.message) };
}

const AVAILABLE = /\b\d+\/\d+ nodes are available: /;
const COUNTED = /(?:^|, )(\d+) (?=[A-Z]|node\(s\)|[a-z])/g;

/**
 * Return the reasons of a message of the form `0/5 nodes are available: 3 Insufficient cpu, 2 node(s) ….`,
 * each with its number of nodes. Any other message is one reason of no nodes.
 */
function reasonsOf(message) {
  const match = AVAILABLE.exec(message);
  if (!match) return message ? [{ reason: message, count: 0 }] : [];
  const sentence = message.slice(match.index + match[0].length).split(/\.(?: |$)/)[0];
  const starts = [...outsideParentheses(sentence).matchAll(COUNTED)];
  return starts.map((start, index) => ({
    reason: sentence.slice(start.index + start[0].length, starts[index + 1]?.index ?? sentence.length).trim(),
    count: Number(start[1]),
  }));
}

/** Return a text of the same length in which what is in parentheses is masked, so that its commas do not divide. */
function outsideParentheses(text) {
  return text.replace(/\([^()]*\)/g, (inner) => (inner === "(s)" ? inner : "(".padEnd(inner.length - 1, "_") + ")"));
}

/** Return how long a pod has waited, in seconds. */
export function waited(pod, now) {
  const created = Date.parse(pod.created);
  return Number.isNaN(created) ? pod.waitingSeconds : Math.max(0, (now - created) / 1000);
}
