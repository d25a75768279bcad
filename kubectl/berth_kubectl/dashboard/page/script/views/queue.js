// The Queue view: the pods that wait, in their order, and why.

import { serverNow } from "../data/requests.js";
import { gathered, waited } from "../data/queue.js";
import { queue } from "../data/sources.js";
import { Glyph } from "../drawing/glyphs.js";
import { html, useMemo } from "../html.js";
import { Choice } from "../parts/choice.js";
import { useCollections, useTicks } from "../parts/hooks.js";
import { NodeLink, PodLink } from "../parts/links.js";
import { Loading, Notice, Refusal, Restricted } from "../parts/notices.js";
import { Search } from "../parts/search.js";
import { sortRows, Table } from "../parts/table.js";
import { setQuery } from "../router.js";
import { age, count, counted, requests } from "../text/amounts.js";

export const STATES = { active: "Active", backoff: "Backing off", unschedulable: "Unschedulable", gated: "Gated" };
const SHOWN_REASONS = 8;
const GROUPS = [
  ["none", "None"],
  ["gang", "Gang"],
  ["namespace", "Namespace"],
  ["state", "State"],
];

/** The view; its state is in the query. */
export function QueueView({ query }) {
  useCollections(queue);
  useTicks(5000);
  const now = serverNow();
  const pods = useMemo(() => [...queue.rows.values()].sort((a, b) => placeOf(a) - placeOf(b)), [queue.version]);
  const shown = useMemo(() => pods.filter(filterOf(query)), [pods, query.search, query.reason]);
  return html`
    <div class="view-head">
      <h1>Queue</h1>
      <p class="view-sub">Pods that wait for a node, in the order in which they are tried. Positions count the pods of all namespaces.</p>
    </div>
    <${Restricted} source=${queue} />
    ${queue.error && queue.error.status !== 0 && html`<${Refusal} error=${queue.error} resource="queue" namespace=${queue.namespace} />`}
    ${pods.length ? html`<${Content} pods=${pods} shown=${shown} query=${query} now=${now} />` : html`<${Empty} />`}
  `;
}

function Empty() {
  if (queue.error) return queue.error.status === 0 && html`<${Refusal} error=${queue.error} retry=${() => queue.retry()} />`;
  if (!queue.isComplete) return html`<${Loading} what="the queue" />`;
  return html`<${Notice} glyph="Ready" tone="good" title="No pods wait">
    <p>${queue.namespace ? `No pod of the namespace ${queue.namespace} waits` : "Every pod of Berth has a node"}.</p>
  <//>`;
}

function filterOf({ search = "", reason = "" }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return (pod) => {
    const text = `${pod.key} ${pod.gang?.name ?? ""} ${pod.message}`.toLowerCase();
    return words.every((word) => text.includes(word)) && (!reason || pod.reasons.some((each) => each.reason === reason));
  };
}

function Content({ pods, shown, query, now }) {
  const by = query.group ?? "none";
  return html`
    <${Totals} pods=${pods} now=${now} />
    <div class="columns">
      <${Reasons} pods=${pods} chosen=${query.reason ?? ""} />
      <${Gangs} pods=${pods} />
    </div>
    <div class="tools">
      <${Search}
        value=${query.search ?? ""}
        label="Search pods by name, namespace, gang or message"
        placeholder="Search pod, namespace, gang, message"
        change=${(text) => setQuery({ search: text }, { replace: true })}
      />
      <${Choice} label="Group" name="group" value=${by} options=${GROUPS} change=${(value) => setQuery({ group: value })} />
      <p class="tools-note" role="status">${shown.length === pods.length ? counted(pods.length, "pod") : `${count(shown.length)} of ${counted(pods.length, "pod")}`}</p>
    </div>
    ${groupsOf(shown, by).map(
      ([title, members]) => html`<section key=${title} class="group">
        ${title && html`<h2>${title} <small>${counted(members.length, "pod")}</small></h2>`}
        <${QueueTable} pods=${members} title=${title} sort=${query.sort ?? "position"} open=${query.open} now=${now} />
      </section>`,
    )}
  `;
}

function groupsOf(pods, by) {
  const key = {
    gang: (pod) => (pod.gang ? `Gang ${pod.namespace}/${pod.gang.name}` : "Single pods"),
    namespace: (pod) => pod.namespace,
    state: (pod) => STATES[pod.state] ?? pod.state,
  }[by];
  if (!key) return [["", pods]];
  const groups = new Map();
  for (const pod of pods) groups.set(key(pod), [...(groups.get(key(pod)) ?? []), pod]);
  return [...groups];
}

function Totals({ pods, now }) {
  const longest = pods.reduce((most, pod) => Math.max(most, waited(pod, now)), 0);
  const states = Object.keys(STATES).map((state) => [state, pods.filter((pod) => pod.state === state).length]);
  return html`<section class="summary" aria-label="Sums">
    <dl>
      <div class="figure"><dt>Waiting</dt><dd><strong>${count(pods.length)}</strong><small>pods</small></dd></div>
      ${states
        .filter(([, number]) => number)
        .map(
          ([state, number]) => html`<div key=${state} class="figure">
            <dt><${Glyph} name=${state} /> ${STATES[state]}</dt>
            <dd><strong>${count(number)}</strong><small>${HINTS[state]}</small></dd>
          </div>`,
        )}
      <div class="figure"><dt>Longest wait</dt><dd><strong>${age(longest)}</strong><small>since creation</small></dd></div>
    </dl>
  </section>`;
}

const HINTS = { active: "tried next", backoff: "tried after a pause", unschedulable: "tried after an event", gated: "kept by gates" };

/** The reasons of all pods: the most frequent first. A click shows the pods of one. */
function Reasons({ pods, chosen }) {
  const sums = new Map();
  for (const pod of pods) for (const { reason } of pod.reasons) sums.set(reason, (sums.get(reason) ?? 0) + 1);
  const listed = [...sums].sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1));
  if (!listed.length) return null;
  const most = listed[0][1];
  return html`<section class="panel" aria-labelledby="reasons-title">
    <h2 id="reasons-title">Why they wait <small>a pod can have several reasons</small></h2>
    <ul class="bars">
      ${listed.slice(0, SHOWN_REASONS).map(
        ([reason, number]) => html`<li key=${reason}>
          <button
            type="button"
            aria-pressed=${reason === chosen}
            onClick=${() => setQuery({ reason: reason === chosen ? "" : reason })}
          >
            <span class="bar" aria-hidden="true" style=${{ width: `${(100 * number) / most}%` }}></span>
            <span class="bar-text">${reason}</span><span class="bar-number">${counted(number, "pod")}</span>
          </button>
        </li>`,
      )}
    </ul>
    ${listed.length > SHOWN_REASONS && html`<p class="more">and ${counted(listed.length - SHOWN_REASONS, "more reason")}</p>`}
  </section>`;
}

/** The pod groups that wait. */
function Gangs({ pods }) {
  const gangs = new Map();
  for (const pod of pods) {
    if (!pod.gang) continue;
    const key = `${pod.namespace}/${pod.gang.name}`;
    gangs.set(key, { key, gang: pod.gang, pods: [...(gangs.get(key)?.pods ?? []), pod] });
  }
  if (!gangs.size) return null;
  return html`<section class="panel" aria-labelledby="gangs-title">
    <h2 id="gangs-title">Gangs</h2>
    <ul class="gangs">
      ${[...gangs.values()].map(
        ({ key, gang, pods: members }) => html`<li key=${key}>
          <span class="gang-name">${key}</span>
          <${GangProgress} gang=${gang} />
          <span class="gang-pods">${members.length} wait, first <${PodLink} namespace=${members[0].namespace} name=${members[0].name} /></span>
        </li>`,
      )}
    </ul>
  </section>`;
}

/** How many of the required members of a gang exist. */
export function GangProgress({ gang }) {
  const { members = 0, required = 0 } = gang;
  const boxes = Math.min(required, 32);
  const isShort = members < required;
  return html`<span class="progress ${isShort ? "short" : ""}">
    <span class="progress-boxes" aria-hidden="true">
      ${Array.from({ length: boxes }, (_, at) => html`<i key=${at} class=${(at / boxes) * required < members ? "filled" : ""}></i>`)}
    </span>
    ${isShort
      ? html`<span><strong>${count(members)} of ${count(required)}</strong> members, ${counted(required - members, "pod is", "pods are")} missing</span>`
      : html`<span><strong>${counted(members, "member")}</strong>, ${count(required)} required</span>`}
  </span>`;
}

function QueueTable({ pods, title, sort, open, now }) {
  const columns = useMemo(() => columnsOf(now, open), [now, open]);
  const groups = useMemo(() => gathered(pods), [pods]);
  const membersOf = (row) => (row.pods && addressOf(row) === open ? sortRows(row.pods, columns, sort) : []);
  const rows = sortRows(groups, columns, sort).flatMap((row) => [row, ...membersOf(row)]);
  return html`<${Table}
    caption=${title ? `Waiting pods: ${title}` : "Waiting pods"}
    columns=${columns}
    rows=${rows}
    keyOf=${(pod) => pod.key}
    rowProps=${(row) => ({ [row.pods ? "data-pods" : "data-pod"]: row.pods ? addressOf(row) : row.key, class: `row-${row.state}` })}
    sort=${sort}
    setSort=${(value) => setQuery({ sort: value }, { replace: true })}
    rowHeight=${48}
  />`;
}

/** Return where a pod comes in the order: those without a position, which gates keep, come last. */
function placeOf(pod) {
  return pod.position || Number.MAX_SAFE_INTEGER;
}

/** Return the name of a group in the page's address. Pods of one controller may form several groups, which open together. */
function addressOf(group) {
  return `${group.namespace}/${group.title}`;
}

function columnsOf(now, open) {
  return [
    { key: "position", title: "#", numeric: true, value: placeOf, cell: (pod) => (pod.position ? count(pod.position) : "–") },
    {
      key: "name",
      title: "Pod",
      value: (pod) => pod.name,
      cell: (row) => (row.pods ? html`<${EqualPods} group=${row} open=${open} />` : html`<${PodLink} namespace=${row.namespace} name=${row.name} />`),
    },
    { key: "namespace", title: "Namespace", value: (pod) => pod.namespace },
    { key: "state", title: "State", value: (pod) => pod.state, cell: (pod) => html`<${State} pod=${pod} />` },
    { key: "waiting", title: "Waiting", numeric: true, value: (pod) => waited(pod, now), cell: (pod) => age(waited(pod, now)) },
    { key: "priority", title: "Priority", numeric: true, value: (pod) => pod.priority, cell: (pod) => count(pod.priority) },
    { key: "requests", title: "Requests", value: (pod) => requests(pod.requests) },
    { key: "gang", title: "Gang", value: (pod) => pod.gang?.name ?? "", cell: (pod) => gangText(pod.gang) },
    { key: "message", title: "Why", wide: true, value: (pod) => pod.message, cell: (pod) => html`<${Why} pod=${pod} />` },
  ];
}

function EqualPods({ group, open }) {
  const isOpen = addressOf(group) === open;
  const toggle = () => setQuery({ open: isOpen ? "" : addressOf(group) });
  return html`<button type="button" class="equal-pods" aria-expanded=${isOpen} onClick=${toggle}>
    <${Glyph} name=${isOpen ? "down" : "right"} size="10" /> ${group.title} <small>${counted(group.pods.length, "pod")}</small>
  </button>`;
}

function gangText(gang) {
  if (!gang) return html`<span class="none">–</span>`;
  if (gang.required === undefined) return gang.name;
  const text = gang.members < gang.required ? `${gang.members} of ${gang.required}` : `${gang.members}, ${gang.required} required`;
  return html`${gang.name} <small>${text}</small>`;
}

function State({ pod }) {
  const text = STATES[pod.state] ?? pod.state;
  return html`<span class="state state-${pod.state}"><${Glyph} name=${pod.state} /> ${text}${pod.backoffSeconds ? ` ${age(pod.backoffSeconds)}` : ""}</span>`;
}

function Why({ pod }) {
  return html`<span class="why" title=${pod.message}>
    ${pod.reservedNode && html`<span class="tag">reserved: <${NodeLink} name=${pod.reservedNode} /></span> `}${whyText(pod) || html`<span class="none">not tried yet</span>`}
  </span>`;
}

/** Return the reasons with their numbers of nodes: a column has no room for what all messages begin with. */
function whyText({ message, reasons }) {
  if (!reasons.some((each) => each.count)) return message;
  return reasons.map(({ reason, count }) => `${count} ${reason}`).join(", ");
}
