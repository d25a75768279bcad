// The details of one node: its cards, their holders, links and metrics.

import { holderIndex } from "../../data/sources.js";
import { html, useEffect, useRef } from "../../html.js";
import { Glyph } from "../../drawing/glyphs.js";

/** A panel next to the grid; on narrow windows it covers the page. */
export function Details({ name, node, close }) {
  const title = useRef(null);
  useEffect(() => title.current?.focus({ preventScroll: true }), [name]);
  return html`<aside class="details" aria-label=${`Node ${name}`}>
    <header>
      <h2 tabindex="-1" ref=${title}>${name}</h2>
      <button type="button" class="icon-button" aria-label="Close details" onClick=${close}><${Glyph} name="close" size="14" /></button>
    </header>
    ${node ? html`<p>${node.state} ${holderIndex.on(name).length}</p>` : html`<p>This node is not in the fleet.</p>`}
  </aside>`;
}
