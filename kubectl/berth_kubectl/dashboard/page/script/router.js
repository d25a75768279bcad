// Which view is shown, and its state: both are in the URL.

import { useEffect, useState } from "./html.js";

const listeners = new Set();

/** Return the view of a path, with the pod that it names. */
export function viewOf(path) {
  const pod = /^\/pods\/([^/]+)\/([^/]+)\/?$/.exec(path);
  if (pod) return { view: "pod", namespace: decode(pod[1]), name: decode(pod[2]) };
  const name = path.replace(/\/+$/, "").slice(1);
  return { view: ["queue", "holders", "health"].includes(name) ? name : "fleet" };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch (error) {
    if (!(error instanceof URIError)) throw error;
    return text;
  }
}

/** Return the address of a pod's view. */
export function podPath(namespace, name) {
  return `/pods/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
}

/** Return the address of a node in the Fleet view. */
export function nodePath(name) {
  return `/?node=${encodeURIComponent(name)}`;
}

/** Show another address. */
export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  for (const listener of [...listeners]) listener();
}

addEventListener("popstate", () => {
  for (const listener of [...listeners]) listener();
});

/** Change parameters of the current address; empty values are removed. */
export function setQuery(changes, options) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const search = query.toString();
  go(location.pathname + (search ? `?${search}` : ""), options);
}

/** Hook: return the current view and its parameters. */
export function useLocation() {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = () => draw((number) => number + 1);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  return { ...viewOf(location.pathname), query: Object.fromEntries(new URLSearchParams(location.search)) };
}
