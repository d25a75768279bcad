import { html } from "../html.js";

/** The Holders view. */
export function HoldersView() {
  return html`<h1>Holders</h1>`;
}
