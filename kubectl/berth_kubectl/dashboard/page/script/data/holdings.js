// What pods do with what they hold, and sums of holders; pure but for the clock of idle times.

import { isIdle } from "./fleet.js";
import { GPU, hundredths } from "./cards.js";

/**
 * Return the use of the GPUs that a pod holds: `{use, idleSeconds}`. Either is null if it is not known; `idleSeconds` is
 * how long all of them are idle, as far as this page has seen it.
 */
export function useOf(holder, node, now) {
  const minors = new Set(holder.devices.filter((part) => part.type === GPU).map((part) => part.minor));
  const cards = node ? node.gpus.filter((card) => minors.has(card.minor)) : [];
  const uses = cards.map((card) => card.metrics?.utilization).filter((use) => use !== undefined);
  if (!uses.length || uses.length < minors.size) return { use: null, idleSeconds: null };
  const isAllIdle = cards.every(isIdle);
  const since = isAllIdle ? Math.max(...cards.map((card) => card.idleSince?.at ?? now)) : null;
  return {
    use: uses.reduce((sum, use) => sum + use, 0) / uses.length,
    idleSeconds: since === null ? null : (now - since) / 1000,
  };
}

const KEYS = {
  namespace: (holder) => holder.namespace,
  owner: (holder) => `${holder.namespace}/${holder.owner || `pod/${holder.name}`}`,
  node: (holder) => holder.node,
};

/** Return sums by `namespace`, `owner` or `node`, the largest first. */
export function summed(rows, by) {
  const groups = new Map();
  for (const row of rows) {
    const key = KEYS[by](row.holder);
    if (!groups.has(key)) groups.set(key, { key, pods: 0, parts: [], idle: 0, measured: 0, oldest: "", models: new Set() });
    add(groups.get(key), row);
  }
  // Not a sum over pods: one with the cores and another with the memory of a card hold one card.
  for (const group of groups.values()) group.hundredths = hundredths(group.parts);
  return [...groups.values()].sort((a, b) => b.hundredths - a.hundredths || (a.key < b.key ? -1 : 1));
}

/** Return how much of GPUs the pods of rows hold together, in hundredths. */
export function hundredthsOf(rows) {
  return hundredths(rows.flatMap(({ holder }) => holder.devices.map((part) => ({ node: holder.node, part }))));
}

function add(group, { holder, use, idleSeconds }) {
  group.pods += 1;
  for (const part of holder.devices) group.parts.push({ node: holder.node, part });
  if (use !== null) group.measured += 1;
  if (idleSeconds !== null) group.idle += 1;
  if (holder.since && (!group.oldest || holder.since < group.oldest)) group.oldest = holder.since;
  for (const { model } of holder.devices) if (model) group.models.add(model);
}
