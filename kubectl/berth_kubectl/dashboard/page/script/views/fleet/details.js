// The details of one node: its state, cards, holders and links.

import { fleet, holderIndex, holders } from "../../data/sources.js";
import { serverNow } from "../../data/requests.js";
import { html, useEffect, useRef } from "../../html.js";
import { Glyph } from "../../drawing/glyphs.js";
import { Meter } from "../../parts/meter.js";
import { PodLink } from "../../parts/links.js";
import { amount, cardName, cards as inCards, counted, typeName } from "../../text/amounts.js";
import { ageOf } from "../../text/times.js";
import { CardTable } from "./card_table.js";
import { LinkTable } from "./link_table.js";
import { NamespaceSwatch } from "./summary.js";

const STATES = {
  Ready: "Ready",
  Cordoned: "Cordoned",
  Silent: "The agent is silent",
  NotReady: "Not ready",
  Blocked: "Blocked",
};

/** A panel next to the grid; on narrow windows it covers the page. */
export function Details({ name, node, mode, close }) {
  const title = useRef(null);
  useEffect(() => title.current?.focus({ preventScroll: true }), [name]);
  return html`<aside class="details" aria-label=${`Node ${name}`}>
    <header>
      <h2 tabindex="-1" ref=${title}>${name}</h2>
      <button type="button" class="icon-button" aria-label="Close details (Esc)" title="Close (Esc)" onClick=${close}>
        <${Glyph} name="close" size="14" />
      </button>
    </header>
    ${node
      ? html`<${Node} node=${node} mode=${mode} />`
      : html`<p class="empty">${fleet.isComplete ? "This node is not in the fleet: it has no Device." : "Reading the fleet …"}</p>`}
  </aside>`;
}

function Node({ node, mode }) {
  return html`
    <${Facts} node=${node} />
    <${Resources} resources=${node.resources} />
    <section>
      <h3>Cards</h3>
      <${CardTable} node=${node} mode=${mode} />
    </section>
    <section>
      <h3>Holders</h3>
      <${Holders} node=${node} />
    </section>
    <${LinkTable} name=${node.name} cards=${node.cards} />
    <${Ids} cards=${node.cards} />
  `;
}

function Facts({ node }) {
  return html`<div class="facts">
    <p class="node-state is-${node.state}">
      <${Glyph} name=${node.state} size="14" /> <strong>${STATES[node.state]}</strong>
      ${node.blocked && html`<span>${node.blocked}</span>`}
    </p>
    <dl>
      <div><dt>${node.models.length > 1 ? "Models" : "Model"}</dt><dd>${node.models.join(", ") || html`<span class="none">none</span>`}</dd></div>
      <div><dt>Zone</dt><dd>${node.zone || html`<span class="none">no label</span>`}</dd></div>
      <div><dt>Rack</dt><dd>${node.rack || html`<span class="none">no label</span>`}</dd></div>
    </dl>
  </div>`;
}

function Resources({ resources }) {
  return html`<ul class="resources">
    ${Object.entries(resources).map(([name, { total, free }]) => {
      const text = `${amount(name, total - free)} of ${amount(name, total)} requested, ${amount(name, free)} free`;
      return html`<li key=${name}>
        <span>${name}</span>
        <${Meter} share=${total ? 1 - free / total : 0} label=${name} text=${text} />
        <span>${text}</span>
      </li>`;
    })}
  </ul>`;
}

function Holders({ node }) {
  if (holders.error?.status === 403) return html`<p class="none">You may not list the pods that hold devices.</p>`;
  const listed = holderIndex.on(node.name);
  const notice = holders.isRestricted && html`<p class="none">Only pods of the namespace ${holders.namespace} are shown.</p>`;
  if (!listed.length) return notice || html`<p class="none">No pod holds a device of this node.</p>`;
  const now = serverNow();
  const sorted = [...listed].sort((a, b) => firstMinor(a) - firstMinor(b) || (a.key < b.key ? -1 : 1));
  return html`${notice}
    <div class="table-box plain" tabindex="0" role="region" aria-label="Pods that hold devices of this node">
      <table>
        <caption class="visually-hidden">Pods that hold devices of ${node.name}</caption>
        <thead>
          <tr><th scope="col">Pod</th><th scope="col">Cards</th><th scope="col" class="numeric">GPUs</th><th scope="col" class="numeric">Age</th></tr>
        </thead>
        <tbody>
          ${sorted.map((holder) => html`<${HolderRow} key=${holder.key} holder=${holder} now=${now} />`)}
        </tbody>
      </table>
    </div>`;
}

function HolderRow({ holder, now }) {
  return html`<tr data-pod=${holder.key}>
    <th scope="row">
      <${NamespaceSwatch} name=${holder.namespace} /> <${PodLink} namespace=${holder.namespace} name=${holder.name} />
      <small class="under">${holder.namespace}${holder.owner && ` · ${holder.owner}`}${holder.drifted && " · drifted"}${holder.exceeding.length > 0 && ` · ${exceedingText(holder)}`}</small>
    </th>
    <td>${cardsText(holder.devices)}</td>
    <td class="numeric">${inCards(holder.hundredths)}</td>
    <td class="numeric">${ageOf(holder.since, now) ?? html`<span class="none">–</span>`}</td>
  </tr>`;
}

function firstMinor(holder) {
  return holder.devices.reduce((least, part) => Math.min(least, part.minor), Infinity);
}

/** Return the cards of parts in short: `GPU 0–3, rdma 1`. */
export function cardsText(parts) {
  const minors = new Map();
  for (const { type, minor } of parts) minors.set(type, (minors.get(type) ?? new Set()).add(minor));
  return [...minors].map(([type, set]) => `${typeName(type)} ${ranges([...set].sort((a, b) => a - b))}`).join(", ");
}

/** Return what a pod uses above its shares: `uses 52Gi of GPU 0, its share is 40Gi`. */
export function exceedingText({ exceeding }) {
  return exceeding.map(({ type, minor, memory, limit }) => `uses ${amount("gpu-memory", memory)} of ${cardName({ type, minor })}, its share is ${amount("gpu-memory", limit)}`).join("; ");
}

function ranges(numbers) {
  const texts = [];
  for (let at = 0; at < numbers.length; ) {
    let end = at;
    while (numbers[end + 1] === numbers[end] + 1) end += 1;
    texts.push(end > at + 1 ? `${numbers[at]}–${numbers[end]}` : numbers.slice(at, end + 1).join(" "));
    at = end + 1;
  }
  return texts.join(" ");
}

function Ids({ cards }) {
  return html`<details class="ids">
    <summary>Ids, NUMA nodes and PCIe switches of ${counted(cards.length, "card")}</summary>
    <dl>
      ${cards.map(
        (card) => html`<div key=${`${card.type} ${card.minor}`}>
          <dt>${cardName(card)}</dt>
          <dd><code>${card.id}</code> <small>${placeOf(card)}</small></dd>
        </div>`,
      )}
    </dl>
  </details>`;
}

/** Return where a card is on the board, as far as that is known. */
function placeOf({ numaNode, pcie, mig }) {
  const parts = [numaNode >= 0 && `NUMA node ${numaNode}`, pcie && `PCIe switch ${pcie}`];
  for (const { profile, free } of mig) parts.push(`${profile} ${free ? "free" : "held"}`);
  return parts.filter(Boolean).join(", ");
}
