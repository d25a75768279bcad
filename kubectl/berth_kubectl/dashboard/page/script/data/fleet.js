// Nodes with their cards: what is kept of each FleetNode, and sums over many.

import { GPU, heldShare } from "./cards.js";

/** Below this use a card that is held counts as idle. */
export const IDLE = 0.01;

const MAX_WORDS = 20000;
const words = new Map();

/** Return an equal text that many rows share. */
function shared(text) {
  const known = words.get(text);
  if (known !== undefined) return known;
  if (words.size >= MAX_WORDS) words.clear();
  words.set(text, text);
  return text;
}

/** Return the state of a node in one word, as `kubectl berth devices` does. */
function stateOf(node) {
  if (!node.reporting) return "Silent";
  if (!node.ready) return "NotReady";
  if (!node.schedulable) return "Cordoned";
  return node.blocked ? "Blocked" : "Ready";
}

/** Return a text by which names are sorted: numbers by their value. */
export function orderOf(name) {
  return name.replace(/\d+/g, (digits) => digits.padStart(9, "0"));
}

function toCard(card, indexOf) {
  const mig = card.mig ?? [];
  const kept = {
    type: shared(card.type),
    minor: card.minor,
    id: card.id,
    model: shared(card.model),
    healthy: card.healthy,
    message: card.message,
    total: card.total,
    free: card.free,
    users: card.users,
    numaNode: card.numaNode,
    pcie: shared(card.pcie),
    mig,
    links: linksOf(card.links ?? {}, indexOf),
    metrics: card.metrics ?? null,
  };
  const share = heldShare(kept);
  // A card that offers nothing, because it has failed, may still be held.
  kept.held = card.users > 0 && share === 0 ? 1 : share;
  return kept;
}

/** Return the kinds of links to the node's other cards, by their index. */
function linksOf(links, indexOf) {
  const kinds = [];
  for (const [id, kind] of Object.entries(links)) {
    const index = indexOf.get(id);
    if (index !== undefined) kinds[index] = shared(kind);
  }
  return kinds;
}

/** Return the row of a FleetNode; the former one if its version is the same. */
export function toNode(object, before) {
  const version = object.metadata.resourceVersion;
  if (before && version && before.version === version) return before;
  const indexOf = new Map(object.devices.map((card, index) => [card.id, index]));
  const cards = object.devices.map((card) => toCard(card, indexOf));
  const models = Object.keys(object.models).map(shared).sort();
  const state = stateOf(object);
  const name = object.metadata.name;
  return {
    name,
    order: shared(orderOf(name)),
    version,
    state,
    blocked: object.blocked,
    models,
    model: shared(models.join(", ")),
    zone: shared(object.zone ?? ""),
    rack: shared(object.rack ?? ""),
    resources: object.resources ?? {},
    cards,
    gpus: cards.filter((card) => card.type === GPU),
    others: cards.filter((card) => card.type !== GPU),
    sums: sumsOf(cards, state),
    text: shared([name, ...models, object.zone, object.rack, state].join(" ").toLowerCase()),
  };
}

/** Return new sums of nothing. */
export function noSums() {
  return {
    nodes: 0,
    gpus: 0,
    held: 0,
    partly: 0,
    full: 0,
    free: 0,
    failed: 0,
    unusable: 0,
    measured: 0,
    use: 0,
    idle: 0,
    power: 0,
    powered: 0,
    unready: 0,
  };
}

/** Return the sums of a node: each GPU is one of full, partly, free, failed or unusable. */
function sumsOf(cards, state) {
  const sums = noSums();
  sums.nodes = 1;
  sums.unready = state === "Ready" ? 0 : 1;
  for (const card of cards) {
    if (card.type !== GPU) continue;
    sums.gpus += 1;
    sums.held += card.held;
    sums[kindOf(card, state)] += 1;
    addMetrics(sums, card);
  }
  return sums;
}

function kindOf(card, state) {
  if (!card.healthy) return "failed";
  if (card.held >= 0.995) return "full";
  if (card.held > 0) return "partly";
  return state === "Ready" ? "free" : "unusable";
}

function addMetrics(sums, card) {
  const { utilization, power } = card.metrics ?? {};
  if (utilization !== undefined) {
    sums.measured += 1;
    sums.use += utilization;
    if (card.users > 0 && utilization < IDLE) sums.idle += 1;
  }
  if (power !== undefined) {
    sums.powered += 1;
    sums.power += power;
  }
}

/** Add the sums of nodes. */
export function total(nodes) {
  const sums = noSums();
  for (const node of nodes) for (const key in sums) sums[key] += node.sums[key];
  return sums;
}

/** Return whether a held card was measured, and is idle; false if it was not measured. */
export function isIdle(card) {
  return card.users > 0 && card.metrics?.utilization !== undefined && card.metrics.utilization < IDLE;
}
