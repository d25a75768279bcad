// One card, or several next to each other, drawn larger than in the fleet.

import { html, useLayoutEffect, useRef } from "../html.js";
import { colours } from "./colours.js";
import { drawCard, prepare } from "./node.js";
import { useTheme } from "../parts/hooks.js";

const GAP = 5;
/** Around a card, for its mark. */
const EDGE = 3;

/**
 * Draw cards in a row. `marked` is a set of the cards that get a frame; `text` is what a screen reader says, empty if
 * the same is written next to it.
 */
export function CardPictures({ cards, mode, partsOf, marked, text = "", width = 22, height = 44 }) {
  const canvas = useRef(null);
  useTheme();
  const all = cards.length * (width + GAP) - GAP + 2 * EDGE;
  useLayoutEffect(() => {
    const scale = devicePixelRatio || 1;
    const context = prepare(canvas.current, all, height + 2 * EDGE, scale);
    const style = { mode, partsOf, dim: 1, theme: colours(), scale };
    cards.forEach((card, index) => {
      const box = { x: EDGE + index * (width + GAP), y: EDGE, w: width, h: height };
      drawCard(context, card, box, style);
      if (marked?.has(card)) drawMark(context, box, style.theme);
    });
  });
  return html`<canvas ref=${canvas} class="cards" role=${text ? "img" : undefined} aria-label=${text || undefined} aria-hidden=${!text}></canvas>`;
}

/** Frame a card that must become free, with an arrow that leaves it. */
function drawMark(context, { x, y, w, h }, theme) {
  context.strokeStyle = theme.mark;
  context.lineWidth = 2.5;
  context.strokeRect(x - 1.5, y - 1.5, w + 3, h + 3);
  const middle = x + w / 2;
  const top = y + h / 2 - 6;
  context.fillStyle = theme.surface;
  context.beginPath();
  context.arc(middle, top + 6, Math.min(9, w / 2 - 1), 0, 7);
  context.fill();
  context.lineWidth = 2;
  context.beginPath();
  context.moveTo(middle, top + 11);
  context.lineTo(middle, top + 2);
  context.moveTo(middle - 3.5, top + 5);
  context.lineTo(middle, top + 1.5);
  context.lineTo(middle + 3.5, top + 5);
  context.stroke();
}
