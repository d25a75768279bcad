// What the requests of a pod's ResourceClaims find, and what keeps other devices from them.

import { html } from "../../html.js";
import { NodeLink } from "../../parts/links.js";
import { count, counted } from "../../text/amounts.js";

/** Show each request with what it finds, in the operator's words. */
export function Claims({ claims }) {
  const looked = `${claims.complete ? "" : "the first "}${counted(claims.nodes, "node")} that they keep it from`;
  return html`<section class="panel" aria-labelledby="claims-title">
    <h2 id="claims-title">Devices for its ResourceClaims <small>${looked}</small></h2>
    <div class="table-box plain" tabindex="0" role="region" aria-label="Devices for its ResourceClaims">
      <table>
        <caption class="visually-hidden">What each request finds</caption>
        <thead>
          <tr>
            <th scope="col">Claim</th>
            <th scope="col">Request</th>
            <th scope="col" class="numeric">Needed</th>
            <th scope="col" class="numeric">Found</th>
            <th scope="col">On</th>
            <th scope="col">Other devices</th>
          </tr>
        </thead>
        <tbody>
          ${claims.requests.map((request) => html`<${Request} key=${`${request.claim} ${request.request}`} request=${request} />`)}
        </tbody>
      </table>
    </div>
    ${claims.together && html`<p class="more">${claims.together}</p>`}
  </section>`;
}

function Request({ request }) {
  return html`<tr data-request=${request.request}>
    <th scope="row">${request.claim}</th>
    <td>${request.request}</td>
    <td class="numeric">${request.needed ? count(request.needed) : "all"}</td>
    <td class="numeric">${count(request.most)}</td>
    <td>${request.nodes.map((name) => html`<${NodeLink} key=${name} name=${name} /> `)}</td>
    <td><ul class="left-out">${request.leftOut.map(({ devices, why }) => html`<li key=${why}>${count(devices)} ${why}</li>`)}</ul></td>
  </tr>`;
}
