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

/** The end of a pod's name that its controller generates: indexes, and a suffix of Kubernetes' random letters. */
const GENERATED = /(?:-(?:\d+|[bcdfghjklmnpqrstvwxz2456789]{5}))+$/;

/**
 * Return pods with a row for each group of equal ones, in place of the group's first: `{...pod, title, pods}`.
 * Pods are equal if all that a row shows is equal, except the place, the age, the rest of the back-off, numbers of nodes,
 * and the generated end of the name. The row has the place of the first pod, and the age of the oldest.
 */
export function gathered(pods) {
  const groups = new Map();
  for (const pod of pods) {
    const { namespace, name, state, priority, requests, gang, reservedNode, reasons } = pod;
    const title = name.replace(GENERATED, "-…");
    const key = JSON.stringify([namespace, title, state, priority, requests, gang, reservedNode, reasons.map(({ reason }) => reason)]);
    const group = groups.get(key);
    if (group) group.pods.push(pod);
    else groups.set(key, { key, title, pods: [pod] });
  }
  return [...groups.values()].map((group) => {
    const [first, ...others] = group.pods;
    if (!others.length) return first;
    const { created, waitingSeconds } = group.pods.reduce((oldest, pod) => (pod.created < oldest.created ? pod : oldest));
    return { ...first, created, waitingSeconds, backoffSeconds: 0, ...group };
  });
}

/** Return how long a pod has waited, in seconds. */
export function waited(pod, now) {
  const created = Date.parse(pod.created);
  return Number.isNaN(created) ? pod.waitingSeconds : Math.max(0, (now - created) / 1000);
}
