// Pods that hold devices, and which of them are on which card.

import { hundredths, shareOf } from "./cards.js";
import { keyOf } from "./collection.js";

/** Return the row of a Holder; the former one if its version is the same. */
export function toHolder(object, before) {
  const { metadata, owner, ...holder } = object;
  const version = metadata.resourceVersion;
  if (before && version && before.version === version) return before;
  return {
    ...holder,
    key: keyOf(metadata),
    version,
    name: metadata.name,
    namespace: metadata.namespace ?? "",
    owner: owner.kind ? `${owner.kind.toLowerCase()}/${owner.name}` : "",
    hundredths: hundredths(object.devices.map((part) => ({ node: object.node, part }))),
  };
}

/** The holders of each node, and how much each namespace holds. */
export class HolderIndex {
  byNode = new Map();
  /** Namespace -> hundredths of GPUs. */
  namespaces = new Map();
  /** Node -> number of its last change among all, so that only what has changed is drawn again. */
  changes = new Map();
  /** Namespace and card -> the parts of it that pods of the namespace hold. */
  #parts = new Map();
  #all = 0;

  /** Take a change of a row; either may be undefined. */
  changed(before, after) {
    if (before) this.#drop(before);
    if (after) this.#add(after);
  }

  /** Return the holders of a node. */
  on(node) {
    return this.byNode.get(node) ?? NONE;
  }

  /** Return what each holder has of a card: `{holder, share}`, the share from 0 to 1. */
  partsOf(node, card) {
    const parts = [];
    for (const holder of this.on(node)) {
      for (const part of holder.devices) {
        if (isOn(part, card)) parts.push({ holder, part, share: shareOf([part.amounts], card.total) });
      }
    }
    return parts;
  }

  #add(holder) {
    const there = this.byNode.get(holder.node);
    if (there) there.push(holder);
    else this.byNode.set(holder.node, [holder]);
    this.#count(holder, 1);
  }

  #drop(holder) {
    const rest = this.on(holder.node).filter((each) => each !== holder);
    if (rest.length) this.byNode.set(holder.node, rest);
    else this.byNode.delete(holder.node);
    this.#count(holder, -1);
  }

  /** Add or drop the parts of a holder; return by how much its namespace holds more of the cards, in hundredths. */
  #change({ namespace, node, devices }, sign) {
    let change = 0;
    for (const part of devices) {
      const key = `${namespace}/${node}/${part.type} ${part.minor >= 0 ? part.minor : part.id}`;
      const before = this.#parts.get(key) ?? NONE;
      const after = sign > 0 ? [...before, part] : before.filter((each) => each !== part);
      for (const [parts, counts] of [[after, 1], [before, -1]]) change += counts * hundredths(parts.map((each) => ({ node, part: each })));
      if (after.length) this.#parts.set(key, after);
      else this.#parts.delete(key);
    }
    return change;
  }

  #count(holder, sign) {
    const sum = (this.namespaces.get(holder.namespace) ?? 0) + this.#change(holder, sign);
    if (sum > 0.001) this.namespaces.set(holder.namespace, sum);
    else this.namespaces.delete(holder.namespace);
    this.#all += 1;
    if (this.byNode.has(holder.node)) this.changes.set(holder.node, this.#all);
    else this.changes.delete(holder.node);
  }
}

const NONE = [];

/** Return whether a part is of a card: by its minor, or by its id if the Device no longer lists the minor. */
function isOn(part, card) {
  if (part.type !== card.type) return false;
  return part.minor >= 0 ? part.minor === card.minor : part.id === card.id;
}
