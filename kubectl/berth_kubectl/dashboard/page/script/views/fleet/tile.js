// The box of one node: a button with its cards drawn in it.

import { Component, html } from "../../html.js";
import { drawNode } from "../../drawing/node.js";
import { Glyph } from "../../drawing/glyphs.js";
import { counted } from "../../text/amounts.js";

const WORDS = { Ready: "", Cordoned: "cordoned", Silent: "agent silent", NotReady: "not ready", Blocked: "blocked" };

/** Return what a screen reader says about a node. */
export function describe(node) {
  const { sums } = node;
  const parts = [WORDS[node.state], node.model, counted(sums.gpus, "GPU"), `${sums.free} free`];
  if (sums.partly) parts.push(`${sums.partly} partly held`);
  if (sums.failed) parts.push(`${sums.failed} failed`);
  return `${node.name}: ${parts.filter(Boolean).join(", ")}`;
}

/** The box; it is drawn again only if its node, its holders or the way of drawing has changed. */
export class Tile extends Component {
  canvas = { current: null };

  shouldComponentUpdate(next) {
    const now = this.props;
    return SHOWN.some((name) => now[name] !== next[name]);
  }

  componentDidMount() {
    this.draw();
  }

  componentDidUpdate(before) {
    if (DRAWN.some((name) => this.props[name] !== before[name])) this.draw();
  }

  draw() {
    const { node, size, mode, tile, partsOf } = this.props;
    const options = { size, mode, drawing: tile.drawing, partsOf: (card) => partsOf(node.name, card) };
    drawNode(this.canvas.current, node, options);
  }

  render({ node, size, tile, left, top, isOpen, isStop }) {
    const glyph = node.state !== "Ready" && html`<${Glyph} name=${node.state} size=${size === "s" ? 9 : 12} />`;
    return html`<button
      type="button"
      class="node node-${size} is-${node.state}"
      style=${{ left: `${left}px`, top: `${top}px`, width: `${tile.width}px`, height: `${tile.height}px` }}
      data-node=${node.name}
      tabindex=${isStop ? 0 : -1}
      aria-label=${describe(node)}
      aria-expanded=${isOpen}
      title=${size === "s" ? node.name : undefined}
    >
      ${size === "s"
        ? glyph && html`<span class="node-mark">${glyph}</span>`
        : html`<span class="node-head"><span class="node-name">${node.name}</span>${glyph}</span>`}
      <canvas ref=${this.canvas} aria-hidden="true"></canvas>
    </button>`;
  }
}

const DRAWN = ["node", "size", "mode", "paint", "tile"];
const SHOWN = ["node", "size", "mode", "paint", "isOpen", "isStop", "tile", "left", "top"];
