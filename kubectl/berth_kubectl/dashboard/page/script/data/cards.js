// Cards: how much of each is held, in whole and by each holder.

const FULL = 100;
/** Compute slices of a GPU in MIG mode. */
const SLICES = 7;
const MIG = "nvidia.com/mig-";
const REPLICAS = "nvidia.com/gpu.shared";
const PROFILE = /^(?:[1-9]c\.)?([1-9])g\./;

export const GPU = "gpu";

/** Return how many slices of its card an instance takes, by its profile or resource; 0 if the name is neither. */
export function slicesOf(name) {
  const match = PROFILE.exec(name.startsWith(MIG) ? name.slice(MIG.length) : name);
  return match ? Number(match[1]) : 0;
}

/** Return the share of a card that is held, 0 to 1. */
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

/** Return the share of its card that a holder's part is, 0 to 1; `total` is what the card offers. */
export function shareOf(amounts, total) {
  let share = 0;
  for (const [name, amount] of Object.entries(amounts)) {
    const slices = slicesOf(name);
    if (slices) share += (slices * amount) / SLICES;
    else if (total[name]) share = Math.max(share, amount / total[name]);
  }
  return Math.min(1, share);
}

/** Return how much of GPUs a part is, in hundredths; devices other than GPUs count as none. */
export function hundredths(part) {
  if (part.type !== GPU) return 0;
  const amounts = part.amounts;
  const core = amounts["gpu-core"] ?? 0;
  const memory = amounts["gpu-memory-ratio"] ?? 0;
  if (core || memory) return Math.max(core, memory);
  const slices = Object.entries(amounts).reduce((sum, [name, amount]) => sum + slicesOf(name) * amount, 0);
  return slices ? (FULL * slices) / SLICES : FULL;
}
