// Whether the data of a view is current, and how old it is.

import { html, useEffect, useRef, useState } from "../html.js";
import { age } from "../text/amounts.js";
import { useCollections, useTicks } from "./hooks.js";

/** The server has answered, and the view says what. */
const REFUSED = { 403: "Not permitted", 404: "Not served" };
/** Seconds after which data that nothing has confirmed is called stale; a watch confirms it every 40. */
const STALE_AFTER = 60;

/** Return the state of a view's sources: `{state, seconds, error, retryIn}`; state is loading, live, stale or lost. */
export function connectionOf(sources, now) {
  const read = sources.filter((each) => each.phase === "live" || !REFUSED[each.error?.status]);
  if (!read.includes(sources[0])) return { state: "lost", seconds: null, text: REFUSED[sources[0].error.status] };
  const lost = read.find((each) => each.phase === "lost");
  const times = read.map((each) => each.confirmedAt).filter((time) => time > 0);
  const seconds = times.length ? (now - Math.min(...times)) / 1000 : null;
  if (lost) return { state: "lost", seconds, error: lost.error, retryIn: Math.max(0, (lost.retryAt - now) / 1000) };
  if (seconds === null) return { state: "loading", seconds };
  return { state: seconds > STALE_AFTER ? "stale" : "live", seconds };
}

const TEXTS = { loading: "Reading", live: "Live", stale: "Stale", lost: "Connection lost" };

/** The indicator in the header. */
export function Connection({ sources }) {
  useTicks();
  useCollections(...sources);
  const { state, seconds, error, retryIn, text = TEXTS[state] } = connectionOf(sources, performance.now());
  const old = seconds === null ? "" : state === "lost" ? `data is ${age(seconds)} old` : `${age(seconds)} ago`;
  return html`<p
    class="connection"
    data-state=${state}
    data-age=${seconds === null ? "" : Math.floor(seconds)}
    title=${error?.message ?? ""}
  >
    <span class="dot" aria-hidden="true"></span>
    <span class="connection-text">${text}</span>
    ${old && html`<span class="connection-age">${old}</span>`}
    ${state === "lost" && retryIn > 0 && html`<span class="connection-retry">next try in ${Math.ceil(retryIn)} s</span>`}
  </p>`;
}

/** Announces to screen readers when the connection is lost or back. */
export function Announcer({ sources }) {
  useTicks();
  const before = useRef("");
  const [text, set] = useState("");
  const { state, error, text: refusal } = connectionOf(sources, performance.now());
  useEffect(() => {
    if (state === "lost") set(`${refusal ?? "Connection lost"}. ${error?.message ?? ""}`);
    else if (state === "stale") set("The data is stale.");
    else if (before.current === "lost" && state === "live") set("Connected again.");
    if (state !== "loading") before.current = state;
  }, [state]);
  return html`<p class="visually-hidden" role="status" aria-live="polite">${text}</p>`;
}
