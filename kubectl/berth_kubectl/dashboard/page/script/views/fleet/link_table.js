// How the cards of a node are connected, in the words of `nvidia-smi topo --matrix`.

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
  NV: "NVLinks, with their number",
  PSB: "on one board",
  PIX: "through one PCIe switch",
  PXB: "through several PCIe switches",
  PHB: "through a host bridge",
  NODE: "on one NUMA node",
  SYS: "between NUMA nodes",
};
const CLASSES = { NV: "nvlink", PSB: "near", PIX: "near", PXB: "middle", PHB: "middle", NODE: "middle", SYS: "far" };

function shortOf(kind) {
  return kind.startsWith("NVLink") ? `NV${kind.replace(/^NVLink x?/, "")}` : (SHORT[kind] ?? kind);
}

function familyOf(short) {
  return short.startsWith("NV") ? "NV" : short;
}

/** The matrix of links; nothing if no card has any. They are read for one node: of all nodes they would be too much. */
export function LinkTable({ name, cards }) {
  const { links, error } = useLinks(name);
  if (error) return html`<section><h3>Links</h3><p class="none">They cannot be read: ${error}</p></section>`;
  const shown = cards.map((card, index) => ({ card, index })).filter(({ index }) => links[index]?.some(Boolean));
  if (!shown.length) return null;
  const kinds = shown.flatMap(({ index }) => links[index].filter(Boolean));
  const families = new Set(kinds.map((kind) => familyOf(shortOf(kind))));
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
      ${[...families].map((family) => html`<span key=${family}><i class="link-${CLASSES[family] ?? "middle"}">${family}</i> ${MEANS[family] ?? ""}</span>`)}
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
  const short = shortOf(kind);
  return html`<td class="link-${CLASSES[familyOf(short)] ?? "middle"}" title=${kind}>${short}</td>`;
}
