import { html } from "../../html.js";

/** The Pod view. */
export function PodView({ namespace, name }) {
  return html`<h1>${namespace}/${name}</h1>`;
}
