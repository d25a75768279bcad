// Cards: how much of each is held, in whole and by each holder.

const FULL = 100;
/** Compute slices of a GPU in MIG mode. */
const SLICES = 7;
const MEMORY = "gpu-memory";
const WHOLE = [["gpu-core", FULL]];
const MIG = "nvidia.com/mig-";
const REPLICAS = "nvidia.com/gpu.shared";
const PROFILE = /^(?:[1-9]c\.)?([1-9])g\./;

export const GPU = "gpu";

/** Return how many slices of its card an instance takes, by its profile or resource; 0 if the name is neither. */
export function slicesOf(name) {
  const match = PROFILE.exec(name.startsWith(MIG) ? name.slice(MIG.length) : name);
  return match ? Number(match[1]) : 0;
}

/** Return the share of a card that is held, 0 to 1, from what is free; for operators that do not show it. */
export function heldShare(card) {
  if (card.mig.length) return heldSlices(card.mig);
  let share = 0;
  for (const [name, total] of Object.entries(card.total)) {
    if (total > 0 && name !== REPLICAS) share = Math.max(share, heldOf(card, name));
  }
  // A card gives slices or shares, so of the others nothing is free.
  if (card.total[REPLICAS]) share = Math.min(share, heldOf(card, REPLICAS));
  return Math.min(1, share);
}

function heldOf(card, name) {
  const total = card.total[name];
  return 1 - (card.free[name] ?? total) / total;
}

function heldSlices(instances) {
  let all = 0;
  let held = 0;
  for (const { profile, free } of instances) {
    const slices = slicesOf(profile) || 1;
    all += slices;
    if (!free) held += slices;
  }
  return all ? held / all : 0;
}

/**
 * Return the share of a card that parts of it are together, 0 to 1, as `berth_api.allocation.held` does: of the
 * resource of which most is held. `total` is what the card has; of a GPU only instances or replicas are needed.
 */
export function shareOf(parts, total) {
  const held = new Map();
  for (const part of parts) {
    const counted = Object.entries(part).filter(([name, amount]) => amount && name !== MEMORY);
    for (const [name, amount] of counted.length ? counted : WHOLE) held.set(name, (held.get(name) ?? 0) + amount);
  }
  let share = 0;
  let slices = 0;
  for (const [name, amount] of held) {
    if (name.startsWith(MIG)) slices += (slicesOf(name) || 1) * amount;
    else share = Math.max(share, amount / (total[name] || FULL));
  }
  return Math.min(1, Math.max(share, slices / (allSlices(total) || SLICES)));
}

function allSlices(total) {
  let all = 0;
  for (const [name, amount] of Object.entries(total)) if (name.startsWith(MIG)) all += (slicesOf(name) || 1) * amount;
  return all;
}

/** Return how much of GPUs parts are together, in hundredths: `{node, part}`; other devices count as none. */
export function hundredths(held) {
  const cards = new Map();
  for (const { node, part } of held) {
    if (part.type !== GPU) continue;
    const key = `${node} ${part.minor >= 0 ? part.minor : part.id}`;
    if (cards.has(key)) cards.get(key).push(part);
    else cards.set(key, [part]);
  }
  let sum = 0;
  for (const parts of cards.values()) sum += FULL * shareOf(parts.map((part) => part.amounts), parts[0].card ?? {});
  return sum;
}
