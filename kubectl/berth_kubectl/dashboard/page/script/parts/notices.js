// What a view shows instead of, or above, its data: loading, nothing there, and why something cannot be read.

import { isNoPod } from "../data/requests.js";
import { html } from "../html.js";
import { Glyph } from "../drawing/glyphs.js";
import { setQuery } from "../router.js";

const ROLES = {
  fleet: "berth-visibility-fleet-view",
  queue: "view",
  holders: "view",
  "pods/explanation": "view",
};

/** A panel with a title, a text and what to do. */
export function Notice({ glyph = "info", tone = "", title, children }) {
  return html`<section class="notice ${tone}">
    <${Glyph} name=${glyph} size="18" />
    <div>
      <h2>${title}</h2>
      ${children}
    </div>
  </section>`;
}

/** A command to type. */
export function Command({ children }) {
  return html`<pre class="command" tabindex="0"><code>${children}</code></pre>`;
}

/** While the first data is read. */
export function Loading({ what }) {
  return html`<p class="loading" role="status"><span class="spinner" aria-hidden="true"></span>Reading ${what} …</p>`;
}

/** Why a resource cannot be read, and what helps; `resource` is its plural, `namespace` empty for all. */
export function Refusal({ error, resource, namespace = "", retry }) {
  const known = KNOWN[error.status];
  return known ? known({ error, resource, namespace }) : html`<${Unreachable} error=${error} retry=${retry} />`;
}

const KNOWN = {
  401: ({ error }) =>
    error.reason
      ? html`<${Notice} glyph="lock" tone="bad" title="The cluster refuses your login">
          <p>The credentials of the context have expired or are refused. Log in again; the page then goes on by itself.</p>
          <p class="detail">${error.message}</p>
        <//>`
      : html`<${Notice} glyph="lock" tone="bad" title="This browser is not logged in to the page">
          <p>
            Open the address that <code>kubectl berth dashboard</code> printed; it works once. If it is used up, start the
            command again.
          </p>
        <//>`,
  403: (props) => html`<${Forbidden} ...${props} />`,
  404: (props) => html`<${Missing} ...${props} />`,
  503: ({ error }) => html`<${Notice} glyph="warning" tone="warn" title="The visibility API does not answer now">
    <p>Usually no replica of the operator leads. Pods that are bound keep running; no pod is bound meanwhile.</p>
    <p class="detail">${error.message}</p>
    <${Command}>kubectl berth doctor<//>
  <//>`,
};

/** Return the right that reading a resource needs, in words. */
export function rightOf(resource, namespace) {
  const verb = resource === "pods/explanation" ? "get" : "list";
  const where = resource === "fleet" || !namespace ? "in the whole cluster" : `in the namespace ${namespace}`;
  return { verb, name: `${resource}.visibility.berth.dev`, where, role: ROLES[resource] };
}

function Forbidden({ error, resource, namespace }) {
  const right = rightOf(resource, namespace);
  return html`<${Notice} glyph="lock" tone="warn" title="You may not read this">
    <p>
      It needs the right to ${right.verb} <code>${right.name}</code> ${right.where}. The ClusterRole <code>${right.role}</code> has it;
      an administrator can grant it:
    </p>
    <${Command}>${grantOf(right, namespace)}<//>
    <p class="detail">${error.message}</p>
  <//>`;
}

function grantOf(right, namespace) {
  return namespace && right.role === "view"
    ? `kubectl create rolebinding NAME -n ${namespace} --clusterrole=${right.role} --user=USER`
    : `kubectl create clusterrolebinding NAME --clusterrole=${right.role} --user=USER`;
}

function Missing({ error, resource }) {
  if (isNoPod(error)) {
    return html`<${Notice} glyph="info" title="There is no such pod">
      <p>It may have ended, or its name or namespace is another one.</p>
      <p class="detail">${error.message}</p>
    <//>`;
  }
  return html`<${Notice} glyph="warning" tone="warn" title="The cluster serves no visibility API">
    <p>
      This page shows what the operator's visibility API answers, and that is not installed. Add the component${" "}
      <code>visibility</code>, or set <code>visibility.enabled</code> in the chart (docs/visibility.md). The commands of${" "}
      <code>kubectl berth</code> work without it:
    </p>
    <${Command}>${COMMANDS[resource] ?? "kubectl berth free"}<//>
    <p class="detail">${error.message}</p>
  <//>`;
}

const COMMANDS = {
  fleet: "kubectl berth devices",
  queue: "kubectl berth queue -A",
  holders: "kubectl berth who -A",
  "pods/explanation": "kubectl berth explain POD -n NAMESPACE",
};

const TITLES = { 0: "The page's server does not answer", 429: "The server has too many requests now" };

function Unreachable({ error, retry }) {
  const title = TITLES[error.status] ?? "The cluster does not answer";
  return html`<${Notice} glyph="warning" tone="bad" title=${title}>
    <p class="detail">${error.message}</p>
    ${retry && html`<p><button type="button" class="button" onClick=${retry}>Try again now</button></p>`}
  <//>`;
}

/** Says that only one namespace is shown, and lets the user choose another; nothing if all are shown. */
export function Restricted({ source }) {
  if (!source.namespace) return null;
  const right = rightOf(source.resource, "");
  return html`<form class="hint" data-restricted=${source.resource} onSubmit=${choose}>
    ${source.isRestricted && html`<${Glyph} name="lock" /> You may not list <code>${right.name}</code> of all namespaces.${" "}`}
    <label>
      Pods of the namespace <input name="namespace" value=${source.namespace} size="16" autocomplete="off" spellcheck="false" />
    </label>${" "}
    <button type="submit" class="button small">Show</button>
  </form>`;
}

function choose(event) {
  event.preventDefault();
  setQuery({ namespace: new FormData(event.target).get("namespace").trim() });
}
