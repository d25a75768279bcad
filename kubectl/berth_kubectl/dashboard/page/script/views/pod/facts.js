// What a waiting pod requests, for how long it waits, and its priority: the explanation has none of them.

import { toQueued, waited } from "../../data/queue.js";
import { pathOf, readNamed, serverNow } from "../../data/requests.js";
import { Glyph } from "../../drawing/glyphs.js";
import { html, useEffect, useState } from "../../html.js";
import { rightOf } from "../../parts/notices.js";
import { age, allRequests, count } from "../../text/amounts.js";

/** Show the facts of the pod's row in the queue, or the right that is missing; nothing if it has no row. */
export function Facts({ namespace, name }) {
  const { pod, isRefused } = useQueued(namespace, name);
  if (isRefused) return html`<${Hint} right=${rightOf("queue", namespace)} />`;
  if (!pod) return null;
  return html`<dl class="pod-facts">
    <div><dt>Requests</dt><dd>${allRequests(pod.requests)}</dd></div>
    <div><dt>Waiting</dt><dd>${age(waited(pod, serverNow()))}</dd></div>
    <div><dt>Priority</dt><dd>${count(pod.priority)}</dd></div>
  </dl>`;
}

function Hint({ right }) {
  return html`<p class="hint" data-forbidden="queue">
    <${Glyph} name="lock" /> Requests, waiting time and priority are not known: you may not list <code>${right.name}</code> ${right.where}${" "}
    (ClusterRole <code>${right.role}</code>).
  </p>`;
}

/**
 * Hook: return `{pod, isRefused}`, the row of a pod in the queue, null while or if there is none; it is read once,
 * because what is shown of it does not change.
 */
function useQueued(namespace, name) {
  const [known, set] = useState({ pod: null });
  useEffect(() => {
    const stop = new AbortController();
    set({ pod: null });
    readNamed(pathOf("queue", namespace), name, stop.signal).then(
      (object) => set({ pod: object ? toQueued(object) : null }),
      // The explanation comes from the same server, and says what other errors there are.
      (error) => error.status === 403 && set({ pod: null, isRefused: true }),
    );
    return () => stop.abort();
  }, [namespace, name]);
  return known;
}
