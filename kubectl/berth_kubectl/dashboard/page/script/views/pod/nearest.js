// The nodes that lack least, each with the cards that must become free.

import { toNode } from "../../data/fleet.js";
import { pathOf, readNamed } from "../../data/requests.js";
import { CardPictures } from "../../drawing/card_picture.js";
import { html, useEffect, useState } from "../../html.js";
import { NodeLink } from "../../parts/links.js";
import { amount, requests, short, typeName } from "../../text/amounts.js";

const REFRESH_MS = 5000;
const NO_PARTS = () => [];

/** Show the nodes, the nearest first. */
export function Nearest({ nearest }) {
  const known = useNodes(nearest.map((each) => each.node));
  return html`<section class="panel" aria-labelledby="nearest-title">
    <h2 id="nearest-title">Nearest nodes <small>would take it if they had what they lack</small></h2>
    <ol class="nearest">
      ${nearest.map((near) => html`<${Near} key=${near.node} near=${near} node=${known.get(near.node)} />`)}
    </ol>
    ${known.refused && html`<p class="more">The cards are not drawn: you may not list <code>fleet.visibility.berth.dev</code> (ClusterRole <code>berth-visibility-fleet-view</code>).</p>`}
  </section>`;
}

function Near({ near, node }) {
  const lacking = new Map(near.cards.map((card) => [`${card.type} ${card.minor}`, card]));
  const drawn = node ? node.cards.filter((card) => card.type === "gpu" || lacking.has(`${card.type} ${card.minor}`)) : [];
  const marked = new Set(drawn.filter((card) => lacking.has(`${card.type} ${card.minor}`)));
  return html`<li data-near=${near.node}>
    <p class="near-name"><${NodeLink} name=${near.node} />${node && html` <small>${node.model}</small>`}</p>
    ${drawn.length > 0 && html`<${CardPictures} cards=${drawn} mode="health" partsOf=${NO_PARTS} marked=${marked} />`}
    <ul class="lacks">
      ${Object.entries(near.resources).map(([name, value]) => html`<li key=${name}>lacks <strong>${amount(name, value)}</strong> ${short(name)}</li>`)}
      ${cardGroups(near.cards).map(({ key, what, cards }) => html`<li key=${key}><strong>${cards}</strong> ${what}</li>`)}
    </ul>
  </li>`;
}

/** Return the cards that must free the same, together. */
function cardGroups(cards) {
  const groups = new Map();
  for (const card of cards) {
    const what = Object.keys(card.amounts).length ? `must free ${requests(card.amounts)}` : "must become free";
    const key = `${card.type} ${what}`;
    if (!groups.has(key)) groups.set(key, { key, type: card.type, what, minors: [] });
    groups.get(key).minors.push(card.minor);
  }
  return [...groups.values()].map(({ key, type, what, minors }) => ({ key, what, cards: `${typeName(type)} ${minors.join(", ")}` }));
}

/** Hook: return the rows of some nodes; the map has `refused` if they may not be read. */
function useNodes(names) {
  const [known, set] = useState(new Map());
  const key = names.join(" ");
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const read = async () => {
      const next = new Map();
      for (const name of names) {
        const answer = await rowOf(name, stop.signal);
        if (answer instanceof Error) next.refused = answer.status === 403;
        else if (answer) next.set(name, answer);
        if (next.refused) break;
      }
      if (stop.signal.aborted) return;
      set(next);
      timer = setTimeout(read, REFRESH_MS);
    };
    read();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key]);
  return known;
}

/** Return the row of a node, null if it has none, or the error: without it the cards are not drawn. */
async function rowOf(name, signal) {
  try {
    const object = await readNamed(pathOf("fleet"), name, signal);
    return object ? toNode(object) : null;
  } catch (error) {
    return error;
  }
}
