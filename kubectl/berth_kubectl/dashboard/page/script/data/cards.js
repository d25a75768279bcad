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

/**
 * Return where the instances of a card are on it: `{instance, from, to}`, from 0 to 1. Those whose placement is not known
 * are one after the other, each as tall as its slices.
 */
export function spansOf(instances) {
  const all = instances.reduce((sum, { profile }) => sum + (slicesOf(profile) || 1), 0);
  let taken = 0;
  return instances.map((instance) => {
    const { placement } = instance;
    if (placement) return { instance, from: placement.start / placement.of, to: (placement.start + placement.size) / placement.of };
    const from = taken;
    taken += slicesOf(instance.profile) || 1;
    return { instance, from: from / all, to: taken / all };
  });
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
