// The Health view: what `kubectl berth doctor` finds, and what to type.

import { doctor } from "../data/sources.js";
import { Glyph } from "../drawing/glyphs.js";
import { html } from "../html.js";
import { useCollections, useTicks } from "../parts/hooks.js";
import { Command, Loading, Notice, Refusal } from "../parts/notices.js";
import { serverNow } from "../data/requests.js";
import { counted } from "../text/amounts.js";
import { ageOf, localTime } from "../text/times.js";

/** The view. */
export function HealthView() {
  useCollections(doctor);
  useTicks(5000);
  const diagnosis = doctor.value;
  return html`
    <div class="view-head with-button">
      <div>
        <h1>Health</h1>
        <p class="view-sub">
          What <code>kubectl berth doctor</code> finds with your rights, and what to type. It needs no leader.
          ${diagnosis?.read &&
          html` <span title=${localTime(diagnosis.read)}>Checked ${ageOf(diagnosis.read, serverNow()) ?? ""} ago.</span>`}
        </p>
      </div>
      <button type="button" class="button" onClick=${() => doctor.retry()}>Check again</button>
    </div>
    ${doctor.error && html`<${Refusal} error=${doctor.error} resource="doctor" retry=${() => doctor.retry()} />`}
    ${diagnosis ? html`<${Diagnosis} ...${diagnosis} />` : !doctor.error && html`<${Loading} what="the installation" />`}
  `;
}

function Diagnosis({ findings, checked, notChecked }) {
  return html`
    ${findings.length === 0 &&
    html`<${Notice} glyph="Ready" tone=${notChecked.length ? "" : "good"} title="Nothing is wrong">
      <p>${counted(checked.length, "check")} found nothing.${notChecked.length > 0 && ` ${counted(notChecked.length, "other")} could not be made.`}</p>
    <//>`}
    <ul class="findings">
      ${findings.map(
        (finding, at) => html`<li key=${`${finding.check} ${finding.object} ${at}`} class="panel finding" data-finding=${finding.check}>
          <h2><${Glyph} name="warning" size="15" /> ${finding.check} <code>${finding.object}</code></h2>
          <p>${finding.message}</p>
          <${Command}>${finding.fix}<//>
        </li>`,
      )}
    </ul>
    <div class="columns">
      ${notChecked.length > 0 &&
      html`<section class="panel">
        <h2>Not checked</h2>
        <dl class="not-checked">
          ${notChecked.map(({ check, reason }) => html`<div key=${check} data-not-checked=${check}><dt><${Glyph} name="lock" /> ${check}</dt><dd>${reason}</dd></div>`)}
        </dl>
      </section>`}
      <section class="panel">
        <h2>Looked for</h2>
        <ul class="checked">
          ${checked.map((check) => html`<${Check} key=${check} name=${check} isFound=${findings.some((finding) => finding.check === check)} />`)}
        </ul>
      </section>
    </div>
  `;
}

/** Checks have the names of faults: a tick alone would say that there is one. */
function Check({ name, isFound }) {
  return html`<li class=${isFound ? "bad" : "good"}>
    <${Glyph} name=${isFound ? "warning" : "Ready"} /> ${name} <small>${isFound ? "finding" : "no finding"}</small>
  </li>`;
}
