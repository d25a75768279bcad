// A bar for one share.

import { html } from "../html.js";

/** Show a share, 0 to 1; `text` is what it means. */
export function Meter({ share, label, text, tone = "" }) {
  return html`<span class="meter ${tone}" role="img" aria-label=${`${label}: ${text}`}>
    <span style=${{ width: `${Math.max(0, Math.min(1, share)) * 100}%` }}></span>
  </span>`;
}
