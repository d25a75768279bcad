// The Pod view: the explanation of one pod as a picture.

import { explanation } from "../../data/sources.js";
import { Glyph } from "../../drawing/glyphs.js";
import { html } from "../../html.js";
import { useCollections } from "../../parts/hooks.js";
import { Link, NodeLink } from "../../parts/links.js";
import { Loading, Refusal } from "../../parts/notices.js";
import { count } from "../../text/amounts.js";
import { GangProgress } from "../queue.js";
import { Claims } from "./claims.js";
import { Facts } from "./facts.js";
import { Groups } from "./groups.js";
import { Nearest } from "./nearest.js";
import { Scores } from "./scores.js";

const STATES = {
  Waiting: ["unschedulable", "waits for an event"],
  BackingOff: ["backoff", "is tried again after a pause"],
  Active: ["active", "is about to be tried"],
  Gated: ["gated", "is kept by its scheduling gates"],
  Binding: ["right", "is being bound"],
  Bound: ["Ready", "has its node"],
  NotManaged: ["info", "is not scheduled by Berth"],
};

/** The view of a pod. */
export function PodView({ namespace, name }) {
  useCollections(explanation);
  const { value, error } = explanation;
  return html`
    <div class="view-head">
      <p class="crumbs"><${Link} to="/queue">Queue<//> <span aria-hidden="true">/</span> ${namespace}</p>
      <h1>${name}</h1>
    </div>
    ${error && html`<${Refusal} error=${error} resource="pods/explanation" namespace=${namespace} retry=${() => explanation.retry()} />`}
    ${value ? html`<${Explanation} value=${value} namespace=${namespace} name=${name} />` : !error && html`<${Loading} what="the explanation" />`}
  `;
}

function Explanation({ value, namespace, name }) {
  const { queue, gang, reservation, bind, changes, claims, outlook = [], groups = [], nearest = [] } = value;
  const [glyph, text] = STATES[value.state] ?? ["info", ""];
  return html`
    <section class="panel pod-head" aria-label="State">
      <p class="pod-state is-pod-${value.state}"><${Glyph} name=${glyph} size="18" /> <strong>${value.state}</strong> <span>${text}</span></p>
      ${queue && html`<${Facts} namespace=${namespace} name=${name} />`}
      <p class="message" data-message>${value.message}</p>
      ${queue && html`<${Place} queue=${queue} />`}
    </section>
    ${outlook.length > 0 && html`<${Answers} answers=${outlook} label="Outlook" />`}
    ${changes &&
    html`<section aria-labelledby="changes-title">
      <h2 id="changes-title" class="outlook-title">${changes.title}</h2>
      <${Answers} answers=${changes.answers} label=${changes.title} />
    </section>`}
    <div class="columns">
      ${gang &&
      html`<section class="panel" aria-labelledby="gang-title">
        <h2 id="gang-title">Gang <small>${gang.name}</small></h2>
        <${GangProgress} gang=${gang} />
        ${gang.firstWithoutPlace && html`<p class="more">The first member without a place is <strong>${gang.firstWithoutPlace}</strong>; what follows is about it.</p>`}
        ${gang.message && html`<p class="more">${gang.message}</p>`}
      </section>`}
      ${reservation &&
      html`<section class="panel" aria-labelledby="reservation-title">
        <h2 id="reservation-title">Reserved node</h2>
        <p><${NodeLink} name=${reservation.node} /></p>
        <p class="more">${reservation.message}</p>
      </section>`}
    </div>
    ${bind && html`<${Scores} bind=${bind} />`}
    ${claims && html`<${Claims} claims=${claims} />`}
    ${nearest.length > 0 && html`<${Nearest} nearest=${nearest} />`}
    ${groups.length > 0 && html`<${Groups} groups=${groups} nodes=${value.nodes} />`}
  `;
}

function Place({ queue }) {
  const share = queue.of > 1 ? (queue.position - 1) / (queue.of - 1) : 0;
  return html`<div class="place">
    <p>
      Position <strong>${count(queue.position)}</strong> of ${count(queue.of)} in the queue${queue.backoffSeconds > 0 &&
      `, backs off for ${Math.ceil(queue.backoffSeconds)} s`}
    </p>
    <span class="place-line" aria-hidden="true"><i style=${{ left: `${share * 100}%` }}></i></span>
    ${queue.wakesOn.length > 0 &&
    html`<p class="wakes">Wakes on ${queue.wakesOn.map((event) => html`<span key=${event} class="tag">${event}</span> `)}</p>`}
  </div>`;
}

/** What is said of the wait, in the operator's words. */
function Answers({ answers, label }) {
  return html`<ul class="outlook" aria-label=${label}>
    ${answers.map(
      ({ title, message, helps }) => html`<li class=${helps ? "yes" : "no"}>
        <${Glyph} name=${helps ? "Ready" : "failed"} size="15" />
        <div>${title && html`<strong>${title}</strong>`}<span>${message}</span></div>
      </li>`,
    )}
  </ul>`;
}
