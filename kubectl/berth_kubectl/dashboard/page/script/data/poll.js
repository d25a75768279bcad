// One object that cannot be watched, read again and again.

import { pause } from "./pacing.js";
import { getObject } from "./requests.js";

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 15000;
/** A server that takes long is asked as much less often. */
const REST_FACTOR = 10;

/** An object with its age; it has the same `phase`, `error`, `confirmedAt` and `retryAt` as a Collection. */
export class Poll {
  value = null;
  phase = "idle";
  error = null;
  confirmedAt = 0;
  retryAt = 0;
  isRestricted = false;
  path = "";

  #listeners = new Set();
  #stop = null;
  #wake = null;

  /** Create a poll that reads once in `interval` milliseconds; `isAbsence(error)`: there is no such object. */
  constructor(interval, isAbsence = () => false) {
    this.interval = interval;
    this.isAbsence = isAbsence;
  }

  /** Call a function when something has changed; return how to end that. */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Read a path from now on. */
  start(path) {
    if (this.#stop && this.path === path) return;
    this.stop();
    if (this.path !== path) {
      this.value = null;
      this.error = null;
      this.phase = "idle";
    }
    this.path = path;
    this.#stop = new AbortController();
    this.#run(this.#stop.signal);
  }

  /** Stop reading; the value stays, with its age. */
  stop() {
    this.#stop?.abort();
    this.#stop = null;
  }

  /** Read at once. */
  retry() {
    this.#wake?.();
  }

  async #run(signal) {
    let failures = 0;
    if (!this.value) this.#become("loading");
    while (!signal.aborted) {
      const began = performance.now();
      const error = await this.#read(signal);
      if (signal.aborted) return;
      failures = error ? failures + 1 : 0;
      const wait = error
        ? Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failures - 1))
        : Math.max(this.interval, REST_FACTOR * (performance.now() - began));
      if (error) this.#fail(error, wait);
      const woken = new Promise((resolve) => (this.#wake = resolve));
      await Promise.race([pause(wait, signal), woken]);
    }
  }

  /** Read once; return the error that the server did not answer with. */
  async #read(signal) {
    try {
      const value = await getObject(this.path, signal);
      if (!signal.aborted) this.#take(value, null);
    } catch (error) {
      if (!this.isAbsence(error)) return error;
      if (!signal.aborted) this.#take(null, error);
    }
    return null;
  }

  #fail(error, wait) {
    this.error = error;
    this.retryAt = performance.now() + wait;
    this.#become("lost");
  }

  #take(value, absence) {
    this.value = value;
    this.error = absence;
    this.confirmedAt = performance.now();
    this.#become("live");
  }

  #become(phase) {
    this.phase = phase;
    for (const listener of [...this.#listeners]) listener();
  }
}
