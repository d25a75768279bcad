// Divides work into slices, so that no task blocks the page for long.

const SLICE_MS = 12;

const channel = new MessageChannel();
const waiting = [];
channel.port1.onmessage = () => waiting.shift()();

/** Return a promise that resolves in a later task, after input and painting had their turn. */
export function nextTask() {
  if (globalThis.scheduler?.yield) return globalThis.scheduler.yield();
  return new Promise((resolve) => {
    waiting.push(resolve);
    channel.port2.postMessage(null);
  });
}

/** Return a function that yields to the page if the current slice is used up. */
export function slices(milliseconds = SLICE_MS) {
  let end = performance.now() + milliseconds;
  return async () => {
    if (performance.now() < end) return;
    await nextTask();
    end = performance.now() + milliseconds;
  };
}

/** Return a promise that resolves after some milliseconds, or as soon as the signal aborts. */
export function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
