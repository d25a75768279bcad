// What a waiting pod requests, for how long it waits, and its priority: the explanation has none of them.

import { toQueued, waited } from "../../data/queue.js";
import { pathOf, readNamed, serverNow } from "../../data/requests.js";
import { html, useEffect, useState } from "../../html.js";
import { age, allRequests, count } from "../../text/amounts.js";

/** Show the facts of the pod's row in the queue; nothing if it has none, or if you may not list the queue. */
export function Facts({ namespace, name }) {
  const pod = useQueued(namespace, name);
  if (!pod) return null;
  return html`<dl class="pod-facts">
    <div><dt>Requests</dt><dd>${allRequests(pod.requests)}</dd></div>
    <div><dt>Waiting</dt><dd>${age(waited(pod, serverNow()))}</dd></div>
    <div><dt>Priority</dt><dd>${count(pod.priority)}</dd></div>
  </dl>`;
}

/** Hook: return the row of a pod in the queue; read once, because what is shown of it does not change. */
function useQueued(namespace, name) {
  const [pod, set] = useState(null);
  useEffect(() => {
    const stop = new AbortController();
    set(null);
    readNamed(pathOf("queue", namespace), name, stop.signal).then(
      (object) => set(object ? toQueued(object) : null),
      () => undefined, // The view is whole without the facts, and says itself when the server does not answer.
    );
    return () => stop.abort();
  }, [namespace, name]);
  return pod;
}
