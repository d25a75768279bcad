// One resource, kept up to date by a list and watches.

import { pause, slices } from "./pacing.js";
import { list, pathOf, RequestError, watch } from "./requests.js";
import { withSlot } from "./slots.js";

/** Of a watch. Short, so that also a fleet without changes confirms its data: the server sends no empty bookmarks. */
const WATCH_SECONDS = 40;
const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 15000;
/** Before a watch that follows one that ended at once. */
const SHORTEST_WATCH = 1000;
/** Between two lists, if other windows have all the slots for watches. */
const WITHOUT_WATCH = 5000;
/** Between two pictures while the first list arrives, and afterwards; for each 1,000 rows as much more. */
const FIRST_LIST_MS = 200;
const PICTURE_MS = 30;
const LONGEST_WAIT_MS = 400;
const GONE = 410;
const FORBIDDEN = 403;
const NO_FALLBACK = async () => "";

/** Return the key of an object: `namespace/name`, or the name. */
export function keyOf(metadata) {
  return metadata.namespace ? `${metadata.namespace}/${metadata.name}` : String(metadata.name);
}

/**
 * The objects of a resource, as rows that a view draws.
 *
 * `phase` is `idle`, `loading`, `live` or `lost`; rows stay while it is lost. `error` is the last failure.
 */
export class Collection {
  rows = new Map();
  phase = "idle";
  error = null;
  /** Whether a whole list was read. */
  isComplete = false;
  /** By performance.now(): when the rows were known to be current. */
  confirmedAt = 0;
  retryAt = 0;
  /** Grows with each change of rows. */
  version = 0;
  /** Grows when a row is added or removed. */
  members = 0;
  /** The namespace that is read; empty for all. */
  namespace = "";
  /** Whether all namespaces were refused, so that only `namespace` is read. */
  isRestricted = false;

  #listeners = new Set();
  #frame = 0;
  #stop = null;
  #failures = 0;

  /**
   * Create a collection. `toRow(object, before)` returns what is kept of an object, `parse(text)` the object of
   * an item or frame; `changed(before, after)` is called with each change, and `listing()` before each list, as changes before it may have been missed.
   */
  constructor(resource, { toRow, parse = JSON.parse, changed = () => undefined, listing = () => undefined }) {
    this.resource = resource;
    this.toRow = toRow;
    this.parse = (text) => parse(text);
    this.changed = changed;
    this.listing = listing;
  }

  /** Call a function, at most once for each painted frame, when something has changed; return how to end that. */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Read the resource from now on; if all namespaces are refused, the one that `fallback()` resolves to. */
  start(namespace = "", fallback = NO_FALLBACK) {
    if (this.#stop && this.wanted === namespace) return;
    this.stop();
    if (this.wanted !== undefined && this.wanted !== namespace) this.#clear();
    this.wanted = namespace;
    this.namespace = namespace;
    this.isRestricted = false;
    this.fallback = fallback;
    this.#stop = new AbortController();
    this.#run(this.#stop.signal);
  }

  /** Stop reading; the rows stay, with their age. */
  stop() {
    this.#stop?.abort();
    this.#stop = null;
  }

  /** Try again at once. */
  retry() {
    this.#wake?.();
  }

  #wake = null;

  async #run(signal) {
    this.#failures = 0;
    while (!signal.aborted) {
      try {
        await this.#listAndWatch(signal);
      } catch (error) {
        if (signal.aborted) return;
        await this.#fail(error, signal);
      }
    }
  }

  async #listAndWatch(signal) {
    if (this.phase !== "lost") this.#become("loading");
    let version = await this.#list(signal);
    this.#confirm();
    while (!signal.aborted) {
      const began = performance.now();
      const outcome = await withSlot(() => this.#watch(version, signal));
      if (!outcome.ran) {
        await pause(WITHOUT_WATCH, signal);
        return;
      }
      if (outcome.value === null) {
        await pause(FIRST_PAUSE, signal); // expired: list again, but not in a tight loop
        return;
      }
      version = outcome.value;
      if (performance.now() - began < SHORTEST_WATCH) await pause(SHORTEST_WATCH, signal);
    }
  }

  async #list(signal) {
    const path = pathOf(this.resource, this.namespace);
    const seen = new Set();
    const rest = slices();
    const objects = list(path, { signal, parse: this.parse });
    this.listing();
    try {
      for (;;) {
        const { done, value } = await objects.next();
        signal.throwIfAborted();
        if (done) {
          this.#removeAllBut(seen);
          this.isComplete = true;
          return value;
        }
        seen.add(this.#put(value));
        await rest();
      }
    } finally {
      await objects.return(""); // closes the connection, also if a row could not be made
    }
  }

  /** Follow one watch; return the version that it reached, or null if the server has forgotten ours. */
  async #watch(version, signal) {
    const rest = slices();
    const options = { seconds: WATCH_SECONDS, signal, parse: this.parse, opened: () => this.#confirm() };
    for await (const { type, object } of watch(pathOf(this.resource, this.namespace), version, options)) {
      signal.throwIfAborted();
      if (type === "ERROR") {
        if (object.code === GONE) return null;
        throw new RequestError(String(object.message), { status: object.code, reason: object.reason });
      }
      if (type === "DELETED") this.#remove(keyOf(object.metadata));
      else if (type !== "BOOKMARK") this.#put(object);
      version = String(object.metadata.resourceVersion);
      this.#confirm();
      await rest();
    }
    this.#confirm(); // ended by the server as agreed
    return version;
  }

  async #fail(error, signal) {
    if (error.status === GONE) {
      await pause(FIRST_PAUSE, signal);
      return;
    }
    if (error.status === FORBIDDEN && !this.namespace) {
      this.namespace = await this.fallback();
      this.isRestricted = this.namespace !== "";
      if (this.isRestricted) return;
    }
    const wait = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** this.#failures);
    this.#failures += 1;
    this.error = error;
    this.retryAt = performance.now() + wait;
    this.#become("lost");
    const woken = new Promise((resolve) => (this.#wake = resolve));
    await Promise.race([pause(wait, signal), woken]);
    this.#wake = null;
  }

  #confirm() {
    this.confirmedAt = performance.now();
    this.#failures = 0;
    this.error = null;
    this.#become("live");
  }

  #put(object) {
    const key = keyOf(object.metadata);
    const before = this.rows.get(key);
    const row = this.toRow(object, before);
    if (row !== before) {
      this.rows.set(key, row);
      if (before === undefined) this.members += 1;
      this.changed(before, row);
      this.#touch();
    }
    return key;
  }

  #remove(key) {
    const before = this.rows.get(key);
    if (before === undefined) return;
    this.rows.delete(key);
    this.members += 1;
    this.changed(before, undefined);
    this.#touch();
  }

  #removeAllBut(keys) {
    for (const key of [...this.rows.keys()]) if (!keys.has(key)) this.#remove(key);
  }

  #clear() {
    this.#removeAllBut(new Set());
    this.isComplete = false;
    this.phase = "idle";
  }

  #touch() {
    this.version += 1;
    this.#notify();
  }

  #become(phase) {
    if (this.phase === phase && phase !== "lost") return;
    this.phase = phase;
    this.#notify();
  }

  /** Coalesce changes: a picture costs more the more rows there are, and the first list changes everything. */
  #notify() {
    if (this.#frame) return;
    const call = () => {
      this.#frame = 0;
      for (const listener of [...this.#listeners]) listener();
    };
    const wait = (this.isComplete ? PICTURE_MS : FIRST_LIST_MS) * (this.rows.size / 1000);
    this.#frame = setTimeout(() => requestAnimationFrame(call), Math.min(wait, LONGEST_WAIT_MS));
  }
}
