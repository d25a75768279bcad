// Nodes with their cards: what is kept of each FleetNode, and sums over many.

import { GPU } from "./cards.js";

/** Below this use a card that is held counts as idle. */
export const IDLE = 0.01;

const TAINTED = "device taint ";

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

/** Return the state of a node in one word; `Blocked` if one of its GPUs is, of a node without GPUs any device. */
function stateOf(node) {
  if (!node.reporting) return "Silent";
  if (!node.ready) return "NotReady";
  if (!node.schedulable) return "Cordoned";
  const gpus = node.devices.filter((card) => card.type === GPU);
  const shown = gpus.length ? gpus : node.devices;
  const isBlocked = shown.length ? shown.some((card) => card.blocked) : node.blocked;
  return isBlocked ? "Blocked" : "Ready";
}

/** Return the text that a search finds a node by. */
function textOf(node, models, cards, state) {
  const words = [node.metadata.name, ...models, node.zone, node.rack, state];
  if (state !== "Ready") words.push("unusable");
  if (cards.some((card) => !card.healthy)) words.push("failed");
  if (cards.some((card) => card.unheld)) words.push("unheld");
  return words.join(" ").toLowerCase();
}

/** Return a text by which names are sorted: numbers by their value. */
export function orderOf(name) {
  return name.replace(/\d+/g, (digits) => digits.padStart(9, "0"));
}

/** Grows with each gap in what is read of the fleet: a card may have been used in between. */
let gaps = 0;

/** Note that changes may have been missed, so that no card counts as idle since before. */
export function noteGap() {
  gaps += 1;
}

/** Return since when a card is idle, by performance.now(): `{at, gaps}`, as far as this page has seen it; else null. */
function idleSince(card, before) {
  if (!isIdle(card)) return null;
  return before?.idleSince?.gaps === gaps ? before.idleSince : { at: performance.now(), gaps };
}

function toCard(card, before) {
  const kept = {
    type: shared(card.type),
    minor: card.minor,
    id: card.id,
    model: shared(card.model),
    // A card that is not given by name has not failed: claims may have it, unless the driver has tainted it.
    healthy: card.healthy || Boolean(card.barred && !card.barred.startsWith(TAINTED)),
    barred: card.barred ?? "",
    message: card.message,
    blocked: card.blocked,
    total: card.total,
    free: card.free,
    users: card.users,
    unheld: card.unheld ?? 0,
    numaNode: card.numaNode,
    pcie: shared(card.pcie),
    mig: card.mig,
    metrics: card.metrics ?? null,
    held: card.held / 100,
  };
  kept.idleSince = idleSince(kept, before);
  return kept;
}

const LINKS = '"links":{';
/** The end of a JSON string that is a value; not a quote that is escaped or that begins a string. */
const ENDS_STRING = /[^\\:,{]"$/;

/**
 * Return a FleetNode's JSON with empty `links`: they are most of it, the keys of each card are others, and only the
 * details show them. The text is returned as it is if an end is not certain.
 */
export function withoutLinks(text) {
  let kept = "";
  let from = 0;
  for (let at = text.indexOf(LINKS); at >= 0; at = text.indexOf(LINKS, from)) {
    const start = at + LINKS.length;
    const end = text.indexOf("}", start);
    if (end > start && !ENDS_STRING.test(text.slice(end - 2, end))) return text;
    kept += text.slice(from, start);
    from = end;
  }
  return kept + text.slice(from);
}

/** Return the kinds of links between the cards of a FleetNode: of each, by the index of the other. */
export function linksOf(object) {
  const indexOf = new Map(object.devices.map((card, index) => [card.id, index]));
  return object.devices.map((card) => {
    const kinds = object.devices.map(() => "");
    for (const [id, kind] of Object.entries(card.links)) if (indexOf.has(id)) kinds[indexOf.get(id)] = kind;
    return kinds;
  });
}

/** Return the row of a FleetNode; the former one if its version is the same. */
export function toNode(object, before) {
  const version = object.metadata.resourceVersion;
  if (before && version && before.version === version) return before;
  const known = new Map(before?.cards.map((card) => [card.id, card]));
  const cards = object.devices.map((card) => toCard(card, known.get(card.id)));
  const models = Object.keys(object.models).map(shared).sort();
  const state = stateOf(object);
  const name = object.metadata.name;
  return {
    name,
    order: before?.order ?? orderOf(name),
    version,
    state,
    blocked: object.blocked,
    models,
    model: shared(models.join(", ")),
    zone: shared(object.zone),
    rack: shared(object.rack),
    resources: object.resources,
    cards,
    gpus: cards.filter((card) => card.type === GPU),
    others: cards.filter((card) => card.type !== GPU),
    sums: sumsOf(cards, state),
    text: textOf(object, models, cards, state),
  };
}

/** Return new sums of nothing; those of states count nodes. */
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
    Ready: 0,
    Cordoned: 0,
    Silent: 0,
    NotReady: 0,
    Blocked: 0,
  };
}

/** Return the sums of a node: each GPU is one of full, partly, free, failed or unusable. */
function sumsOf(cards, state) {
  const sums = noSums();
  sums.nodes = 1;
  sums[state] = 1;
  for (const card of cards) {
    if (card.type !== GPU) continue;
    sums.gpus += 1;
    sums.held += card.held;
    sums[kindOf(card, state)] += 1;
    addMetrics(sums, card);
  }
  return sums;
}

/** States of nodes on which cards that are not blocked themselves are allocated. */
const TAKES_PODS = new Set(["Ready", "Blocked"]);

function kindOf(card, state) {
  if (!card.healthy) return "failed";
  if (card.held >= 0.995) return "full";
  if (card.held > 0) return "partly";
  return card.blocked || card.barred || !TAKES_PODS.has(state) ? "unusable" : "free";
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

/** Add the sums of nodes. Each field by its name: this runs for all nodes with each picture. */
export function total(nodes) {
  const all = noSums();
  for (const { sums } of nodes) {
    all.nodes += sums.nodes;
    all.gpus += sums.gpus;
    all.held += sums.held;
    all.partly += sums.partly;
    all.full += sums.full;
    all.free += sums.free;
    all.failed += sums.failed;
    all.unusable += sums.unusable;
    all.measured += sums.measured;
    all.use += sums.use;
    all.idle += sums.idle;
    all.power += sums.power;
    all.powered += sums.powered;
    all.Ready += sums.Ready;
    all.Cordoned += sums.Cordoned;
    all.Silent += sums.Silent;
    all.NotReady += sums.NotReady;
    all.Blocked += sums.Blocked;
  }
  return all;
}

/** Return whether a held card was measured, and is idle; false if it was not measured. */
export function isIdle(card) {
  return card.users > 0 && card.metrics?.utilization !== undefined && card.metrics.utilization < IDLE;
}
