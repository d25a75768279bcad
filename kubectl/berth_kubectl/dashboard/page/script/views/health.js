import { html } from "../html.js";

/** The Health view. */
export function HealthView() {
  return html`<h1>Health</h1>`;
}
