// The cards of a node as a table.

import { isIdle } from "../../data/fleet.js";
import { holderIndex } from "../../data/sources.js";
import { CardPictures } from "../../drawing/card_picture.js";
import { Glyph } from "../../drawing/glyphs.js";
import { html } from "../../html.js";
import { Meter } from "../../parts/meter.js";
import { bytes, cardName, counted, percent } from "../../text/amounts.js";

/** One row for each card. */
export function CardTable({ node, mode }) {
  return html`<div class="table-box plain" tabindex="0" role="region" aria-label=${`Cards of ${node.name}`}>
    <table class="card-table">
      <caption class="visually-hidden">Cards of ${node.name}</caption>
      <thead>
        <tr>
          <th scope="col">Card</th>
          <th scope="col">Held</th>
          <th scope="col">Use</th>
          <th scope="col">Memory</th>
          <th scope="col" class="numeric">Power</th>
        </tr>
      </thead>
      <tbody>
        ${node.cards.map((card) => html`<${Row} key=${`${card.type} ${card.minor}`} node=${node} card=${card} mode=${mode} />`)}
      </tbody>
    </table>
  </div>`;
}

function Row({ node, card, mode }) {
  const { utilization, memoryUsed, power } = card.metrics ?? {};
  const memory = card.total["gpu-memory"];
  return html`
    <tr>
      <th scope="row">
        <span class="card-name">
          <${CardPictures} cards=${[card]} mode=${mode} partsOf=${(each) => holderIndex.partsOf(node.name, each)} width=${13} height=${24} />
          ${cardName(card)}
        </span>
      </th>
      <td><${Held} card=${card} /></td>
      ${card.type === "gpu"
        ? html`<td><${Use} card=${card} use=${utilization} /></td>
            <td><${Memory} used=${memoryUsed} total=${memory} /></td>
            <td class="numeric">${power === undefined ? html`<${NotMeasured} />` : `${Math.round(power)} W`}</td>`
        : html`<td colspan="3" class="none">–</td>`}
    </tr>
    ${!card.healthy &&
    html`<tr class="fault">
      <td colspan="5"><${Glyph} name="failed" /> ${card.message || "failed; the agent names no cause"}</td>
    </tr>`}
    ${card.barred &&
    html`<tr class="barred">
      <td colspan="5">not given by name: ${card.barred}</td>
    </tr>`}
    ${card.unheld > 0 &&
    html`<tr class="fault">
      <td colspan="5"><${Glyph} name="warning" /> ${unheldText(card)}</td>
    </tr>`}
  `;
}

function Held({ card }) {
  const [placement] = card.mig.map((instance) => instance.placement).filter(Boolean);
  if (placement) return html`<span title=${placedText(card.mig)}>${percent(card.held)} in ${counted(card.mig.length, "instance")}</span>`;
  if (card.mig.length) {
    const held = card.mig.filter((instance) => !instance.free).length;
    return html`<span title=${migText(card.mig)}>${held} of ${card.mig.length} MIG</span>`;
  }
  if (!card.users) return html`<span class="none">free</span>`;
  return percent(card.held);
}

function unheldText({ unheld }) {
  return `${counted(unheld, "pod")} ${unheld === 1 ? "uses it and does" : "use it and do"} not hold it: kubectl berth doctor`;
}

/** Return the instances of a card with their memory slices, the first slice first. */
function placedText(instances) {
  const placed = instances.filter(({ placement }) => placement).sort((a, b) => a.placement.start - b.placement.start);
  return placed
    .map(({ profile, placement: { start, size, of } }) => `${profile}: memory slices ${start} to ${start + size - 1} of ${of}`)
    .join(", ");
}

function migText(instances) {
  const sums = new Map();
  for (const { profile, free } of instances) {
    const [all, idle] = sums.get(profile) ?? [0, 0];
    sums.set(profile, [all + 1, idle + (free ? 1 : 0)]);
  }
  return [...sums].map(([profile, [all, free]]) => `${profile}: ${free} of ${all} free`).join(", ");
}

function Use({ card, use }) {
  if (use === undefined) return html`<${NotMeasured} />`;
  if (isIdle(card)) return html`<span class="idle"><${Glyph} name="idle" /> idle</span>`;
  return html`<${Meter} share=${use} label="Use" text=${percent(use)} tone="use" /> ${percent(use)}`;
}

function Memory({ used, total }) {
  if (used === undefined) return html`<${NotMeasured} />`;
  return html`${bytes(used)}${total > 0 && html` <small>of ${bytes(total)}</small>`}`;
}

/** Stands for a value that was not measured; never a zero. */
export function NotMeasured() {
  return html`<span class="not-measured">not measured</span>`;
}
