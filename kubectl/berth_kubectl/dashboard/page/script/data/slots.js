// A browser opens six connections to a server for all its windows together, and each watch keeps one. So all windows
// share a few slots for watches; one without a slot lists again from time to time.

const SLOTS = 4;

/** Run a task while holding a slot; return whether there was one, and what the task returned: `{ran, value}`. */
export async function withSlot(task) {
  if (!navigator.locks) return { ran: true, value: await task() };
  const outcome = { ran: false, value: undefined };
  for (let number = 0; number < SLOTS && !outcome.ran; number += 1) {
    await navigator.locks.request(`berth-watch-${number}`, { ifAvailable: true }, async (lock) => {
      if (!lock) return;
      outcome.ran = true;
      outcome.value = await task();
    });
  }
  return outcome;
}
