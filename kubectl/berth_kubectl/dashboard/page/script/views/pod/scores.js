// The scores of a bound pod's node and of the runners-up, as stacked bars.

import { html } from "../../html.js";
import { NodeLink } from "../../parts/links.js";
import { Notice } from "../../parts/notices.js";

const COLOURS = 8;

/** Show the scores; a table has the same numbers. */
export function Scores({ bind }) {
  if (!bind.kept) {
    return html`<${Notice} title="The scores are not kept">
      <p>The pod is bound to <${NodeLink} name=${bind.node} />${bind.message && html`; the scores are not kept: ${bind.message}`}.</p>
    <//>`;
  }
  const terms = [...new Set(bind.scores.flatMap((score) => Object.keys(score.terms)))];
  const [least, most] = rangeOf(bind.scores);
  return html`<section class="panel" aria-labelledby="scores-title">
    <h2 id="scores-title">Scores of the chosen node and the runners-up</h2>
    <ul class="score-legend">
      ${terms.map((term, at) => html`<li key=${term}><${Swatch} at=${at} /> ${term}</li>`)}
    </ul>
    <div class="table-box plain" tabindex="0" role="region" aria-label="Scores">
      <table class="scores">
        <caption class="visually-hidden">Weighted points of each score</caption>
        <thead>
          <tr>
            <th scope="col">Node</th>
            <th scope="col" class="numeric">Total</th>
            <th scope="col" class="score-bars">Points</th>
            ${terms.map((term) => html`<th key=${term} scope="col" class="numeric">${term}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${bind.scores.map(
            (score) => html`<tr key=${score.node} class=${score.node === bind.node ? "chosen" : ""}>
              <th scope="row"><${NodeLink} name=${score.node} />${score.node === bind.node && html` <small>chosen</small>`}</th>
              <td class="numeric"><strong>${points(score.total)}</strong></td>
              <td class="score-bars"><${Bar} score=${score} terms=${terms} least=${least} most=${most} /></td>
              ${terms.map((term) => html`<td key=${term} class="numeric">${points(score.terms[term] ?? 0)}</td>`)}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </section>`;
}

function points(number) {
  return String(Math.round(number * 100) / 100);
}

function Swatch({ at }) {
  const striped = at >= COLOURS ? "swatch-striped" : "";
  return html`<i class="swatch ${striped}" style=${{ backgroundColor: `var(--ns-${at % COLOURS})` }}></i>`;
}

/** Return the ends of the scale: the sums of negative and of positive points. */
function rangeOf(scores) {
  let least = 0;
  let most = 0;
  for (const { terms } of scores) {
    const values = Object.values(terms);
    least = Math.min(least, values.reduce((sum, value) => sum + Math.min(0, value), 0));
    most = Math.max(most, values.reduce((sum, value) => sum + Math.max(0, value), 0));
  }
  return [least, most];
}

/** Positive points go to the right of zero, negative ones to the left. */
function Bar({ score, terms, least, most }) {
  const scale = 100 / Math.max(most - least, 1e-9);
  let right = -least;
  let left = -least;
  const parts = terms.map((term, at) => {
    const value = score.terms[term] ?? 0;
    const from = value >= 0 ? right : left + value;
    if (value >= 0) right += value;
    else left += value;
    const place = { left: `${from * scale}%`, width: `${Math.abs(value) * scale}%` };
    const striped = at >= COLOURS ? "swatch-striped" : "";
    return html`<i key=${term} class=${striped} title=${`${term}: ${points(value)}`} style=${{ ...place, backgroundColor: `var(--ns-${at % COLOURS})` }}></i>`;
  });
  return html`<span class="score-bar" aria-hidden="true">${parts}<b style=${{ left: `${-least * scale}%` }}></b></span>`;
}
