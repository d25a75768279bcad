// The Holders view: which pods hold devices, by namespace, owner, node or each.

import { hundredthsOf, summed, useOf } from "../data/holdings.js";
import { serverNow } from "../data/requests.js";
import { fleet, holders } from "../data/sources.js";
import { Glyph } from "../drawing/glyphs.js";
import { html, useMemo } from "../html.js";
import { Choice } from "../parts/choice.js";
import { useCollections, useTicks } from "../parts/hooks.js";
import { Link, NodeLink, PodLink } from "../parts/links.js";
import { Loading, Notice, Refusal, Restricted, rightOf } from "../parts/notices.js";
import { Search } from "../parts/search.js";
import { sortRows, Table } from "../parts/table.js";
import { setQuery } from "../router.js";
import { age, cards, count, counted, percent, secondsSince } from "../text/amounts.js";
import { ageOf, localTime, until } from "../text/times.js";
import { cardsText, exceedingText } from "./fleet/details.js";

const BY = [
  ["pod", "Pod"],
  ["namespace", "Namespace"],
  ["owner", "Owner"],
  ["node", "Node"],
];
const SHOWN = 8;

/** The view; its state is in the query. */
export function HoldersView({ query }) {
  useCollections(holders, fleet);
  useTicks(5000);
  const clock = Math.floor(performance.now() / 5000);
  const rows = useMemo(rowsOf, [holders.version, fleet.version, clock]);
  const shown = useMemo(() => rows.filter(filterOf(query)), [rows, query.search, query.only]);
  return html`
    <div class="view-head">
      <h1>Holders</h1>
      <p class="view-sub">Pods that hold devices. A GPU counts as a whole one, a share by its hundredths, a MIG instance by its share of the slices of its card's instances.</p>
    </div>
    <${Restricted} source=${holders} />
    ${holders.error && holders.error.status !== 0 && html`<${Refusal} error=${holders.error} resource="holders" namespace=${holders.namespace} />`}
    ${rows.length ? html`<${Content} rows=${rows} shown=${shown} query=${query} />` : html`<${Empty} />`}
  `;
}

function Empty() {
  if (holders.error) return holders.error.status === 0 && html`<${Refusal} error=${holders.error} retry=${() => holders.retry()} />`;
  if (!holders.isComplete) return html`<${Loading} what="the holders" />`;
  return html`<${Notice} title="No pods hold devices"><p>${holders.namespace ? `None of the namespace ${holders.namespace}.` : "All devices are free."}</p><//>`;
}

function rowsOf() {
  const now = performance.now();
  return [...holders.rows.values()].map((holder) => ({ holder, ...useOf(holder, fleet.rows.get(holder.node), now) }));
}

function filterOf({ search = "", only = "" }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return ({ holder, idleSeconds }) => {
    const text = `${holder.key} ${holder.owner} ${holder.node}`.toLowerCase();
    if (only === "idle" && idleSeconds === null) return false;
    if (only === "drifted" && !holder.drifted) return false;
    return words.every((word) => text.includes(word));
  };
}

function Content({ rows, shown, query }) {
  const by = query.by ?? "pod";
  const now = serverNow();
  return html`
    <${Totals} rows=${rows} only=${query.only ?? ""} />
    <div class="columns">
      <${Share} title="By namespace" groups=${summed(rows, "namespace")} search=${query.search ?? ""} />
      <${Share} title="By owner" groups=${summed(rows, "owner")} search=${query.search ?? ""} />
    </div>
    <div class="tools">
      <${Search}
        value=${query.search ?? ""}
        label="Search by pod, namespace, owner or node"
        placeholder="Search pod, namespace, owner, node"
        change=${(text) => setQuery({ search: text }, { replace: true })}
      />
      <${Choice} label="One row for each" name="by" value=${by} options=${BY} change=${(value) => setQuery({ by: value, sort: "" })} />
      <p class="tools-note" role="status">${shown.length === rows.length ? counted(rows.length, "pod") : `${count(shown.length)} of ${counted(rows.length, "pod")}`}</p>
    </div>
    ${fleet.error?.status === 403 &&
    html`<p class="hint" data-forbidden="fleet"><${Glyph} name="lock" /> Use is not known: you may not list <code>${rightOf("fleet").name}</code> (ClusterRole <code>${rightOf("fleet").role}</code>).</p>`}
    ${by === "pod" ? html`<${PodTable} rows=${shown} sort=${query.sort} now=${now} />` : html`<${SumTable} rows=${shown} by=${by} sort=${query.sort} now=${now} />`}
  `;
}

function Totals({ rows, only }) {
  const hundredths = hundredthsOf(rows);
  const isMeasured = rows.some(({ use }) => use !== null);
  const idle = rows.filter(({ idleSeconds }) => idleSeconds !== null);
  const drifted = rows.filter(({ holder }) => holder.drifted).length;
  const idleGpus = hundredthsOf(idle);
  const toggle = (value) => () => setQuery({ only: only === value ? "" : value });
  return html`<section class="summary" aria-label="Sums">
    <dl>
      <div class="figure"><dt>Pods</dt><dd><strong>${count(rows.length)}</strong><small>hold devices</small></dd></div>
      <div class="figure"><dt>GPUs held</dt><dd><strong>${cards(hundredths)}</strong><small>shares by hundredths</small></dd></div>
      <div class="figure ${idle.length ? "warn" : ""}">
        <dt>Idle pods</dt>
        <dd>
          ${isMeasured ? html`<strong>${count(idle.length)}</strong><small>all their GPUs below 1 %, ${cards(idleGpus)} GPUs held</small>` : html`<span class="not-measured">not measured</span>`}
          ${idle.length > 0 && html`<button type="button" class="filter" aria-pressed=${only === "idle"} onClick=${toggle("idle")}>Only these</button>`}
        </dd>
      </div>
      <div class="figure ${drifted ? "bad" : ""}">
        <dt>Drifted</dt>
        <dd>
          <strong>${count(drifted)}</strong><small>other devices than allocated</small>
          ${drifted > 0 && html`<button type="button" class="filter" aria-pressed=${only === "drifted"} onClick=${toggle("drifted")}>Only these</button>`}
        </dd>
      </div>
    </dl>
  </section>`;
}

/** Who holds most: a click searches for it. */
function Share({ title, groups, search }) {
  const listed = groups.slice(0, SHOWN);
  const most = listed[0]?.hundredths || 1;
  const id = title.replace(/ /g, "-").toLowerCase();
  return html`<section class="panel" aria-labelledby=${id}>
    <h2 id=${id}>${title}</h2>
    <ul class="bars">
      ${listed.map(
        ({ key, hundredths, pods }) => html`<li key=${key}>
          <button type="button" aria-pressed=${search === key} onClick=${() => setQuery({ search: search === key ? "" : key })}>
            <span class="bar" aria-hidden="true" style=${{ width: `${(100 * hundredths) / most}%` }}></span>
            <span class="bar-text">${key}</span>
            <small>${counted(pods, "pod")}</small>
            <span class="bar-number">${cards(hundredths)} <small>${hundredths === 100 ? "GPU" : "GPUs"}</small></span>
          </button>
        </li>`,
      )}
    </ul>
    ${groups.length > SHOWN && html`<p class="more">and ${counted(groups.length - SHOWN, "other")}</p>`}
  </section>`;
}

function PodTable({ rows, sort = "-gpus", now }) {
  const columns = useMemo(() => podColumns(now), [now]);
  return html`<${Table}
    caption="Pods that hold devices"
    columns=${columns}
    rows=${sortRows(rows, columns, sort)}
    keyOf=${({ holder }) => holder.key}
    rowProps=${({ holder }) => ({ "data-pod": holder.key })}
    sort=${sort}
    setSort=${(value) => setQuery({ sort: value }, { replace: true })}
  />`;
}

function podColumns(now) {
  const seconds = (text) => secondsSince(text, now) ?? -Infinity;
  return [
    { key: "name", title: "Pod", value: ({ holder }) => holder.name, cell: ({ holder }) => html`<${PodLink} namespace=${holder.namespace} name=${holder.name} />` },
    { key: "namespace", title: "Namespace", value: ({ holder }) => holder.namespace },
    { key: "owner", title: "Owner", value: ({ holder }) => holder.owner, cell: ({ holder }) => holder.owner || html`<span class="none">none</span>` },
    { key: "node", title: "Node", value: ({ holder }) => holder.node, cell: ({ holder }) => html`<${NodeLink} name=${holder.node} />` },
    { key: "gpus", title: "GPUs", numeric: true, value: ({ holder }) => holder.hundredths, cell: ({ holder }) => cards(holder.hundredths) },
    { key: "cards", title: "Cards", cell: ({ holder }) => html`${cardsText(holder.devices)}${holder.drifted && html` <span class="tag bad">drifted</span>`}${holder.exceeding.length > 0 && html` <span class="tag bad" title=${exceedingText(holder)}>above its share</span>`}` },
    { key: "age", title: "Age", numeric: true, value: ({ holder }) => seconds(holder.since), cell: ({ holder }) => html`<${Time} text=${holder.since} shown=${ageOf(holder.since, now)} />` },
    { key: "ends", title: "Ends", numeric: true, value: ({ holder }) => -seconds(holder.endsBy), cell: ({ holder }) => html`<${Time} text=${holder.endsBy} shown=${until(holder.endsBy, now)} />` },
    { key: "use", title: "Use", numeric: true, value: ({ use, idleSeconds }) => (use === null ? -1 : use - (idleSeconds ?? 0) / 1e9), cell: (row) => html`<${Use} ...${row} />` },
  ];
}

function Time({ text, shown }) {
  return shown === null ? html`<span class="none">–</span>` : html`<time datetime=${text} title=${localTime(text)}>${shown}</time>`;
}

function Use({ use, idleSeconds }) {
  if (use === null) return html`<span class="not-measured">not measured</span>`;
  if (idleSeconds === null) return percent(use);
  return html`<span class="idle" title="As long as this page has seen it"><${Glyph} name="idle" /> idle ≥ ${age(idleSeconds)}</span>`;
}

const TITLES = { namespace: "Namespace", owner: "Owner", node: "Node" };

function SumTable({ rows, by, sort = "-gpus", now }) {
  const groups = useMemo(() => summed(rows, by), [rows, by]);
  const columns = useMemo(() => sumColumns(by, now), [by, now]);
  return html`<${Table}
    caption=${`Devices held by ${by}`}
    columns=${columns}
    rows=${sortRows(groups, columns, sort)}
    keyOf=${(group) => group.key}
    rowProps=${(group) => ({ "data-group": group.key })}
    sort=${sort}
    setSort=${(value) => setQuery({ sort: value }, { replace: true })}
  />`;
}

function sumColumns(by, now) {
  return [
    { key: "name", title: TITLES[by], value: (group) => group.key, cell: (group) => html`<${Link} class="name" to=${`/holders?search=${encodeURIComponent(group.key)}`}>${group.key}<//>` },
    { key: "pods", title: "Pods", numeric: true, value: (group) => group.pods, cell: (group) => count(group.pods) },
    { key: "gpus", title: "GPUs", numeric: true, value: (group) => group.hundredths, cell: (group) => cards(group.hundredths) },
    { key: "idle", title: "Idle pods", numeric: true, value: (group) => (group.measured ? group.idle : -1), cell: (group) => (group.measured ? count(group.idle) : html`<span class="not-measured">not measured</span>`) },
    { key: "oldest", title: "Oldest", numeric: true, value: (group) => secondsSince(group.oldest, now) ?? -Infinity, cell: (group) => html`<${Time} text=${group.oldest} shown=${ageOf(group.oldest, now)} />` },
    { key: "models", title: "Models", wide: true, cell: (group) => [...group.models].join(", ") },
  ];
}
