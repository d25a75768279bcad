// Glyphs, as strokes in a square of 12; the same in SVG and on canvas.

import { html } from "../html.js";

export const GLYPHS = {
  Ready: "M2.5 6.5l2.5 2.5 4.5-6",
  Cordoned: "M6 1.5a4.5 4.5 0 1 0 .01 0M2.9 9.1l6.2-6.2",
  Silent: "M2 5a5.5 5.5 0 0 1 8 0M4 7.2a2.8 2.8 0 0 1 4 0M6 9.6v.01M2 11l8-9.6",
  NotReady: "M6 1.5l5 9H1zM6 5v2.4M6 8.9v.01",
  Blocked: "M2.8 5.5h6.4v5H2.8zM4.2 5.5V4a1.8 1.8 0 0 1 3.6 0v1.5",
  failed: "M2.5 2.5l7 7M9.5 2.5l-7 7",
  mig: "M1.5 1.5h9v9h-9zM1.5 6h9M6 1.5v9",
  idle: "M4 3v6M8 3v6",
  search: "M5 1.5a3.5 3.5 0 1 0 .01 0M7.6 7.6l3 3",
  close: "M2.5 2.5l7 7M9.5 2.5l-7 7",
  light: "M6 3.7a2.3 2.3 0 1 0 .01 0M6 .8v1M6 10.2v1M.8 6h1M10.2 6h1M2.3 2.3l.7.7M9 9l.7.7M9.7 2.3l-.7.7M3 9l-.7.7",
  dark: "M10 7.6A4.6 4.6 0 0 1 4.4 2a4.6 4.6 0 1 0 5.6 5.6z",
  system: "M1.5 2h9v6.5h-9zM4 10.8h4M6 8.5v2.3",
  up: "M3 7.5l3-3 3 3",
  down: "M3 4.5l3 3 3-3",
  right: "M4.5 3l3 3-3 3",
  warning: "M6 1.5l5 9H1zM6 5v2.4M6 8.9v.01",
  info: "M6 1.2a4.8 4.8 0 1 0 .01 0M6 5.4v3.2M6 3.4v.01",
  clock: "M6 1.2a4.8 4.8 0 1 0 .01 0M6 3.4V6l1.8 1.4",
  lock: "M2.8 5.5h6.4v5H2.8zM4.2 5.5V4a1.8 1.8 0 0 1 3.6 0v1.5",
  active: "M3.5 2l6 4-6 4z",
  backoff: "M6 1.2a4.8 4.8 0 1 0 .01 0M6 3.4V6l1.8 1.4",
  unschedulable: "M3 1.5h6M3 10.5h6M3.8 1.5c0 4 4.4 5 4.4 9M8.2 1.5c0 4-4.4 5-4.4 9",
  gated: "M2.8 5.5h6.4v5H2.8zM4.2 5.5V4a1.8 1.8 0 0 1 3.6 0v1.5",
};

/** A glyph next to a text that means the same. */
export function Glyph({ name, size = 12 }) {
  return html`<svg class="glyph" width=${size} height=${size} viewBox="0 0 12 12" aria-hidden="true" focusable="false">
    <path d=${GLYPHS[name] ?? GLYPHS.info} />
  </svg>`;
}
