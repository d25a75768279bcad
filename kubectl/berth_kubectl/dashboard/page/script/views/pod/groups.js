// All nodes by what they lack, as proportional bars.

import { html } from "../../html.js";
import { NodeLink } from "../../parts/links.js";
import { count, counted, percent } from "../../text/amounts.js";

const SHADES = 6;

/** Show groups of nodes with the same reasons, the largest first. */
export function Groups({ groups, nodes = 0 }) {
  const rejected = groups.reduce((sum, group) => sum + group.count, 0);
  const all = Math.max(nodes, rejected, 1);
  return html`<section class="panel" aria-labelledby="groups-title">
    <h2 id="groups-title">All nodes, by what they lack <small>${counted(nodes, "node")} considered</small></h2>
    <div class="group-strip" aria-hidden="true">
      ${groups.map((group, at) => html`<span key=${at} class="shade" style=${{ ...shadeOf(at), flexGrow: group.count }} title=${group.reasons.join("; ")}></span>`)}
      ${nodes > rejected && html`<span class="shade-rest" style=${{ flexGrow: nodes - rejected }} title="not rejected"></span>`}
    </div>
    <ol class="groups">
      ${groups.map((group, at) => html`<${Group} key=${group.reasons.join("; ")} group=${group} at=${at} all=${all} />`)}
    </ol>
  </section>`;
}

/** Return how dark a group is: the first, which is the largest, most. */
function shadeOf(at) {
  return { "--part": `${Math.round(100 * 0.74 ** (at % SHADES))}%` };
}

function Group({ group, at, all }) {
  const counted = new Set(group.counted);
  return html`<li>
    <span class="group-count"><i class="shade" style=${shadeOf(at)}></i><strong>${count(group.count)}</strong> <small>${percent(group.count / all)}</small></span>
    <div>
      <ul>
        ${group.reasons.map(
          (reason) => html`<li key=${reason} class=${counted.has(reason) ? "" : "uncounted"}>
            ${reason}${!counted.has(reason) && html` <small>not in the message</small>`}
          </li>`,
        )}
      </ul>
      <${Names} group=${group} />
    </div>
  </li>`;
}

function Names({ group }) {
  const more = group.count - group.nodes.length;
  return html`<details>
    <summary>${group.count === 1 ? "Node" : "Nodes"}${group.filters.length > 0 && html` <small>rejected by ${group.filters.join(", ")}</small>`}</summary>
    <p class="names">
      ${group.nodes.map((name) => html`<${NodeLink} key=${name} name=${name} /> `)}${more > 0 && html`<small>and ${count(more)} more</small>`}
    </p>
  </details>`;
}
