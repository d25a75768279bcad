// Times as people read them.

import { age, secondsSince } from "./amounts.js";

const format = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** Return an RFC 3339 time in the browser's time zone; empty if it is none. */
export function localTime(text) {
  const time = Date.parse(text);
  return Number.isNaN(time) ? "" : format.format(time);
}

/** Return how long ago a time was, as a column AGE has it; null if it is not known. */
export function ageOf(text, now) {
  const seconds = secondsSince(text, now);
  return seconds === null ? null : age(seconds);
}

/** Return in how long a time comes: `in 3h`, `over`; null if it is not known. */
export function until(text, now) {
  const seconds = secondsSince(text, now);
  if (seconds === null) return null;
  return seconds >= 0 ? "over" : `in ${age(-seconds)}`;
}
