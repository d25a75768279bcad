// How the cards of a node are connected, in the words of `nvidia-smi topo --matrix`. Direct links of all types come
// with their number (`XGMI x1`), by which they are known here.

import { linksOf } from "../../data/fleet.js";
import { pathOf, readNamed } from "../../data/requests.js";
import { html, useEffect, useState } from "../../html.js";

const SHORT = {
  SameBoard: "PSB",
  SingleSwitch: "PIX",
  MultiSwitch: "PXB",
  HostBridge: "PHB",
  SameNUMANode: "NODE",
  System: "SYS",
};
const MEANS = {
  PSB: "on one board",
  PIX: "through one PCIe switch",
  PXB: "through several PCIe switches",
  PHB: "through a host bridge",
  NODE: "on one NUMA node",
  SYS: "between NUMA nodes",
};
const CLASSES = { PSB: "near", PIX: "near", PXB: "middle", PHB: "middle", NODE: "middle", SYS: "far" };

const DIRECT = /^(.+) x(\d+)$/;
const ABBREVIATED = { NVLink: "NV" };

/** The family of a kind of connection, `NV`, and what stands in its cell, `NV12`. */
function namesOf(kind) {
  const [, type, number] = kind.match(DIRECT) ?? [];
  if (!type) return { family: SHORT[kind] ?? kind, short: SHORT[kind] ?? kind };
  const family = ABBREVIATED[type] ?? type;
  return { family, short: `${family}${number}`, means: `${type}, with the number of links` };
}

function classOf(kind) {
  return DIRECT.test(kind) ? "direct" : (CLASSES[namesOf(kind).family] ?? "middle");
}

/** The matrix of links; nothing if no card has any. They are read for one node: of all nodes they would be too much. */
export function LinkTable({ name, cards }) {
  const { links, error } = useLinks(name);
  if (error) return html`<section><h3>Links</h3><p class="none">They cannot be read: ${error}</p></section>`;
  const shown = cards.map((card, index) => ({ card, index })).filter(({ index }) => links[index]?.some(Boolean));
  if (!shown.length) return null;
  const kinds = shown.flatMap(({ index }) => links[index].filter(Boolean));
  const families = new Map(kinds.map((kind) => [namesOf(kind).family, kind]));
  return html`<section>
    <h3>Links</h3>
    <div class="table-box plain" tabindex="0" role="region" aria-label="Links between cards">
      <table class="link-table">
        <caption class="visually-hidden">Links between cards</caption>
        <thead>
          <tr>
            <td></td>
            ${shown.map(({ card }) => html`<th key=${card.id} scope="col">${nameOf(card)}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${shown.map(
            ({ card, index }) => html`<tr key=${card.id}>
              <th scope="row">${nameOf(card)}</th>
              ${shown.map((other) => html`<${LinkCell} key=${other.card.id} kind=${links[index][other.index]} isSelf=${index === other.index} />`)}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    <p class="link-legend">
      ${[...families].map(([family, kind]) => html`<span key=${family}><i class="link-${classOf(kind)}">${family}</i> ${namesOf(kind).means ?? MEANS[family] ?? ""}</span>`)}
    </p>
  </section>`;
}

/** Hook: return the links of a node, `{links, error}`. */
function useLinks(name) {
  const [known, set] = useState(NO_LINKS);
  useEffect(() => {
    const stop = new AbortController();
    set(NO_LINKS);
    readNamed(pathOf("fleet"), name, stop.signal).then(
      (object) => set({ links: object ? linksOf(object) : [], error: "" }),
      (error) => stop.signal.aborted || set({ links: [], error: error.message }),
    );
    return () => stop.abort();
  }, [name]);
  return known;
}

const NO_LINKS = { links: [], error: "" };

function nameOf(card) {
  return card.type === "gpu" ? card.minor : `${card.type} ${card.minor}`;
}

function LinkCell({ kind, isSelf }) {
  if (isSelf) return html`<td class="link-self"></td>`;
  if (!kind) return html`<td class="none">–</td>`;
  return html`<td class="link-${classOf(kind)}" title=${kind}>${namesOf(kind).short}</td>`;
}
