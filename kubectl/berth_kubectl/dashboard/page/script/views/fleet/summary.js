// The sums of the fleet, and what the colours mean.

import { html } from "../../html.js";
import { COLOURED_NAMESPACES, NAMESPACE_COLOURS, namespaceColours, USE_STEPS } from "../../drawing/colours.js";
import { Glyph } from "../../drawing/glyphs.js";
import { setQuery } from "../../router.js";
import { cards, count, percent } from "../../text/amounts.js";

/** States of nodes on which nothing is placed now. */
const UNUSABLE = [
  ["Silent", "silent"],
  ["NotReady", "not ready"],
  ["Cordoned", "cordoned"],
  ["Blocked", "blocked"],
];
/** What a GPU can be, in the order of the bar. */
const KINDS = [
  ["full", "held"],
  ["partly", "partly held"],
  ["free", "free"],
  ["unusable", "free, but not usable"],
  ["failed", "failed"],
];

/** A bar of what the GPUs are. */
export function ShareBar({ sums }) {
  const listed = KINDS.filter(([key]) => sums[key] > 0);
  const text = listed.map(([key, name]) => `${count(sums[key])} ${name}`).join(", ");
  return html`<div class="share-bar" role="img" aria-label=${text || "no GPUs"} title=${text}>
    ${listed.map(([key]) => html`<span key=${key} class="share-${key}" style=${{ flexGrow: sums[key] }}></span>`)}
  </div>`;
}

/** The sums in large numbers; what was not measured has none, and one line says so. `search` is what the nodes were searched for. */
export function Summary({ sums, isComplete, search }) {
  const unusable = sums.nodes - sums.Ready;
  return html`<section class="summary" aria-label="Sums" data-complete=${isComplete}>
    <dl>
      <${Figure} name="GPUs" value=${count(sums.gpus)} more=${`on ${count(sums.nodes)} nodes`} />
      <${Figure} name="Free" value=${count(sums.free)} tone="free" more=${`${count(sums.partly)} partly held`} />
      <${Figure}
        name="Held"
        value=${sums.gpus ? percent(sums.held / sums.gpus) : "–"}
        more=${`${cards(100 * sums.held)} GPUs`}
      />
      ${sums.measured > 0 &&
      html`<${Figure}
          name="In use"
          value=${percent(sums.use / sums.measured)}
          more=${`${count(sums.measured)} of ${count(sums.gpus)} measured`}
        />
        <${Figure} name="Held, idle" value=${count(sums.idle)} more="GPUs with use below 1 %" />`}
      ${sums.powered > 0 &&
      html`<${Figure} name="Power" value=${`${count(Math.round(sums.power / 100) / 10)} kW`} more=${`of ${count(sums.powered)} GPUs`} />`}
      <${Figure} name="Failed" value=${count(sums.failed)} tone=${sums.failed ? "bad" : ""} more="GPUs with a fault">
        ${sums.failed > 0 && html`<${OnlyThese} word="failed" search=${search} />`}
      <//>
      <${Figure} name="Nodes not usable" value=${count(unusable)} tone=${unusable ? "warn" : ""} more=${unusableText(sums)}>
        ${unusable > 0 && html`<${OnlyThese} word="unusable" search=${search} />`}
      <//>
    </dl>
    ${sums.gpus > 0 && !sums.measured && html`<p class="not-measured">Use of GPUs is not measured: the operator reads no metrics.</p>`}
    <${ShareBar} sums=${sums} />
    <ul class="share-legend">
      ${KINDS.filter(([key]) => sums[key] > 0).map(
        ([key, name]) => html`<li key=${key}><i class="swatch share-${key}"></i>${count(sums[key])} ${name}</li>`,
      )}
    </ul>
  </section>`;
}

function unusableText(sums) {
  const states = UNUSABLE.filter(([state]) => sums[state] > 0);
  return states.map(([state, text]) => `${count(sums[state])} ${text}`).join(", ") || "all are ready";
}

/** A button that searches for the nodes that a figure counts, and ends that. */
function OnlyThese({ word, search }) {
  const isOn = search === word;
  const click = () => setQuery({ search: isOn ? "" : word });
  return html`<button type="button" class="filter" aria-pressed=${isOn} onClick=${click}>Only these</button>`;
}

function Figure({ name, value, more, tone = "", children }) {
  return html`<div class="figure ${tone}">
    <dt>${name}</dt>
    <dd>
      <strong>${value}</strong>
      <small>${more}</small>
      ${children}
    </dd>
  </div>`;
}

/** What the fills of the cards, and the marks of nodes, mean; on a narrow window it is closed, so that nodes have room. */
export function Legend({ isNarrow, ...shown }) {
  const list = html`<${LegendList} ...${shown} />`;
  return isNarrow
    ? html`<details class="legend"><summary>Legend</summary>${list}</details>`
    : html`<section class="legend" aria-label="Legend">${list}</section>`;
}

function LegendList({ mode, namespaces, isPartial, sums }) {
  return html`<ul>
      ${mode === "namespace" && html`<${NamespaceLegend} namespaces=${namespaces} isPartial=${isPartial} />`}
      ${mode === "use" && html`<${UseLegend} />`}
      ${mode === "health" && html`<li><i class="swatch" style=${{ background: "var(--held)" }}></i>held</li>`}
      <li><i class="swatch share-partly"></i>partly held</li>
      <li><i class="swatch swatch-free"></i>free</li>
      <li><i class="swatch swatch-failed"><${Glyph} name="failed" size="10" /></i>failed</li>
      <li><i class="swatch swatch-mig"></i>MIG</li>
      ${UNUSABLE.filter(([state]) => sums[state] > 0).map(
        ([state, text]) => html`<li key=${state} class="is-${state}"><${Glyph} name=${state} /> ${text}</li>`,
      )}
    </ul>`;
}

function NamespaceLegend({ namespaces, isPartial }) {
  const listed = [...namespaces].sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1));
  const own = listed.filter(([name]) => namespaceColours.place(name) >= 0).slice(0, COLOURED_NAMESPACES);
  const rest = listed.length - own.length;
  return html`
    ${own.map(
      ([name, held]) => html`<li key=${name}><${NamespaceSwatch} name=${name} />${name} <small title="GPUs">${held >= 1000 ? count(Math.round(held / 100)) : cards(held)}</small></li>`,
    )}
    ${rest > 0 && html`<li><i class="swatch" style=${{ background: "var(--ns-other)" }}></i>${rest} more</li>`}
    ${isPartial && html`<li><i class="swatch" style=${{ background: "var(--held)" }}></i>held, by pods that you may not see</li>`}
  `;
}

/** The colour of a namespace. */
export function NamespaceSwatch({ name }) {
  const place = namespaceColours.place(name);
  const colour = place < 0 ? "var(--ns-other)" : `var(--ns-${place % NAMESPACE_COLOURS})`;
  const striped = place >= NAMESPACE_COLOURS ? "swatch-striped" : "";
  return html`<i class="swatch ${striped}" style=${{ backgroundColor: colour }}></i>`;
}

function UseLegend() {
  const steps = Array.from({ length: USE_STEPS }, (_, step) => step);
  return html`
    <li><i class="swatch swatch-idle"></i>held, idle</li>
    <li>
      <span class="ramp">${steps.map((step) => html`<i key=${step} class="swatch" style=${{ background: `var(--use-${step})` }}></i>`)}</span>
      use 1 to 100 %
    </li>
    <li><i class="swatch swatch-unmeasured"></i>held, not measured</li>
  `;
}
