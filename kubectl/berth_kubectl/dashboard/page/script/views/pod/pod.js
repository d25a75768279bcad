// The Pod view: the explanation of one pod as a picture.

import { reasonsOf } from "../../data/queue.js";
import { explanation } from "../../data/sources.js";
import { Glyph } from "../../drawing/glyphs.js";
import { html } from "../../html.js";
import { useCollections } from "../../parts/hooks.js";
import { Link, NodeLink } from "../../parts/links.js";
import { Loading, Refusal } from "../../parts/notices.js";
import { count, counted } from "../../text/amounts.js";
import { GangProgress } from "../queue.js";
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
  const { queue, gang, reservation, bind, groups = [], nearest = [] } = value;
  const [glyph, text] = STATES[value.state] ?? ["info", ""];
  return html`
    <section class="panel pod-head" aria-label="State">
      <p class="pod-state is-pod-${value.state}"><${Glyph} name=${glyph} size="18" /> <strong>${value.state}</strong> <span>${text}</span></p>
      ${queue && html`<${Facts} namespace=${namespace} name=${name} />`}
      <p class="message" data-message>${value.message}</p>
      ${queue && html`<${Place} queue=${queue} />`}
    </section>
    ${(value.remedies ?? value.fitsWhenEmpty) !== undefined && value.state !== "Bound" && html`<${Outlook} value=${value} />`}
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

/** Whether it fits, and what would end the wait, in the operator's words. */
function Outlook({ value }) {
  const { fitsNow, fitsWhenEmpty, nodes = 0, remedies = [], inVain, preemption } = value;
  return html`<ul class="outlook" aria-label="What would help">
    ${fitsWhenEmpty !== undefined &&
    html`<${Answer}
      is=${fitsNow || fitsWhenEmpty > 0}
      title=${fitsNow ? "Fits now" : "Does not fit now"}
      text=${`${count(fitsWhenEmpty)} of ${counted(nodes, "node")} would take it if they were empty.`}
    />`}
    ${inVain && html`<${Answer} is=${false} title="Waiting is in vain" text="No change of the cluster ends this wait." />`}
    ${remedies.map(
      ({ kind, answer, message }) => html`<${Answer} is=${answer === "Ends"} title=${TITLES.get(kind) ?? kind} text=${`${message}.`} />`,
    )}
    ${preemption &&
    html`<${Answer} is=${preemption.possible} title=${preemption.possible ? "Preemption is possible" : "No preemption"} text=${preemptionText(preemption.message)} />`}
  </ul>`;
}

/** Kind of a remedy -> its title. */
const TITLES = new Map([
  ["Member", "Members"],
  ["Claim", "Claims"],
  ["Label", "Labels"],
  ["NewNode", "A new node"],
  ["Capacity", "Capacity"],
  ["End", "Pods that end"],
  ["Preemption", "Preemption"],
  ["Administrator", "An administrator"],
]);

/** Return a message about preemption, each reason with its number of nodes after it: the reasons begin with capitals. */
function preemptionText(message) {
  return reasonsOf(message)
    .map(({ reason, count: nodes }) => (nodes ? `${reason} (${counted(nodes, "node")}).` : reason))
    .join(" ");
}

function Answer({ is, title, text }) {
  return html`<li class=${is ? "yes" : "no"}>
    <${Glyph} name=${is ? "Ready" : "failed"} size="15" />
    <div><strong>${title}</strong><span>${text}</span></div>
  </li>`;
}
