// GET requests to the page's own server, and what its refusals mean.

import { ListSplitter, LineSplitter } from "./splitter.js";

const NOT_FOUND = 404;
const ROOT = "/apis/visibility.berth.dev/v1alpha1";

/** A request that was refused, or had no answer. */
export class RequestError extends Error {
  /** Create the error; `status` is the HTTP status, 0 if the page's own server did not answer. */
  constructor(message, { status = 0, reason = "" } = {}) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

/** Milliseconds by which the API server's clock is ahead of this browser's. */
let skew = 0;

/** Return the time by the server's clock, in milliseconds since 1970. */
export function serverNow() {
  return Date.now() + skew;
}

/** Return the path of a resource of the visibility API. */
export function pathOf(resource, namespace = "") {
  return namespace ? `${ROOT}/namespaces/${encodeURIComponent(namespace)}/${resource}` : `${ROOT}/${resource}`;
}

/** Return the path of the explanation of a pod. */
export function explanationPath(namespace, name) {
  return `${pathOf("pods", namespace)}/${encodeURIComponent(name)}/explanation`;
}

async function get(path, query, signal) {
  const search = new URLSearchParams(query).toString();
  let answer;
  try {
    answer = await fetch(search ? `${path}?${search}` : path, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError("the server of this page does not answer; is `kubectl berth dashboard` still running?");
  }
  if (!answer.ok) throw await refusal(answer);
  const date = Date.parse(answer.headers.get("Date") ?? "");
  if (date) skew = date - Date.now();
  return answer;
}

async function refusal(answer) {
  const text = (await answer.text()).slice(0, 65536);
  try {
    const status = JSON.parse(text);
    return new RequestError(String(status.message || answer.statusText), {
      status: answer.status,
      reason: String(status.reason || ""),
    });
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    return new RequestError(text.split("\n")[0].slice(0, 300) || answer.statusText, { status: answer.status });
  }
}

/** Return whether an error says that a pod does not exist; the same status means that the API is not served. */
export function isNoPod(error) {
  return error.status === NOT_FOUND && /^pods? ".*" not found$/.test(error.message);
}

/** Return one object. */
export async function getObject(path, signal) {
  return (await get(path, {}, signal)).json();
}

/** Return the row of a name, of the list of a path; undefined if there is none. */
export async function readNamed(path, name, signal) {
  const selector = encodeURIComponent(`metadata.name=${name}`);
  const { items } = await getObject(`${path}?fieldSelector=${selector}`, signal);
  return items.find((each) => each.metadata.name === name);
}

/** Yield the bytes of an answer as they arrive. */
async function* bytesOf(answer, signal) {
  const reader = answer.body.getReader();
  try {
    for (;;) {
      const { done, value } = await read(reader, signal);
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => undefined); // the stream may have failed already
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError("the connection was closed");
  }
}

/** Yield the objects of a list as they arrive, parsed by `parse`; return its resourceVersion. */
export async function* list(path, { signal, parse }) {
  const splitter = new ListSplitter();
  for await (const bytes of bytesOf(await get(path, {}, signal), signal)) {
    for (const text of splitter.push(bytes)) yield parse(text);
  }
  return String(splitter.end().metadata?.resourceVersion ?? "");
}

/** Yield the frames of a watch; `opened` is called as soon as the server has accepted it. */
export async function* watch(path, version, { seconds, signal, parse, opened }) {
  const query = { watch: "true", resourceVersion: version, timeoutSeconds: seconds, allowWatchBookmarks: "true" };
  const answer = await get(path, query, signal);
  opened();
  const splitter = new LineSplitter();
  for await (const bytes of bytesOf(answer, signal)) {
    for (const text of splitter.push(bytes)) yield parse(text);
  }
}
