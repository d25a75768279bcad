// Draws the cards of a node: the fill is what is held.

import { colours, NAMESPACE_COLOURS, namespaceColours, useStep } from "./colours.js";
import { GLYPHS } from "./glyphs.js";
import { isIdle } from "../data/fleet.js";
import { spansOf } from "../data/cards.js";

/** Cards in a row of the box of a node. */
export const MAX_COLUMNS = 8;

export const SIZES = {
  s: { cell: 8, widest: 13, height: 15, gap: 2, pad: 4, head: 0, pill: 2, least: 0 },
  m: { cell: 12, widest: 22, height: 26, gap: 2, pad: 7, head: 18, pill: 4, least: 104 },
  l: { cell: 20, widest: 34, height: 42, gap: 3, pad: 9, head: 22, pill: 5, least: 150 },
};

/** Return how large the drawing of some cards is, in CSS pixels, if each is `cell` wide. */
export function drawingSize(size, { gpus, others, cell }) {
  const { height, gap, pill } = SIZES[size];
  const rows = Math.max(1, Math.ceil(gpus / MAX_COLUMNS));
  const pills = Math.ceil(others / MAX_COLUMNS);
  const width = columnsOf(gpus) * (cell + gap) - gap;
  return { cell, width, height: rows * (height + gap) - gap + pills * (pill + gap) };
}

/** Return the number of cards in a row. */
export function columnsOf(gpus) {
  return Math.max(1, Math.min(MAX_COLUMNS, gpus));
}

const CROSS = new Path2D(GLYPHS.failed);

/**
 * Draw a node's cards; `mode` is `namespace`, `use` or `health`, `partsOf(card)` returns the shares of its holders.
 */
export function drawNode(canvas, node, { size, mode, partsOf, drawing }) {
  const scale = devicePixelRatio || 1;
  const context = prepare(canvas, drawing.width, drawing.height, scale);
  const { height: tall, gap, pill } = SIZES[size];
  const { cell } = drawing;
  const dim = node.state === "Ready" || node.state === "Cordoned" ? 1 : 0.5;
  const style = { mode, partsOf, dim, theme: colours(), scale };
  node.gpus.forEach((card, index) => {
    const x = (index % MAX_COLUMNS) * (cell + gap);
    const y = Math.floor(index / MAX_COLUMNS) * (tall + gap);
    drawCard(context, card, { x, y, w: cell, h: tall }, style);
  });
  const top = Math.max(1, Math.ceil(node.gpus.length / MAX_COLUMNS)) * (tall + gap);
  node.others.forEach((card, index) => {
    const x = (index % MAX_COLUMNS) * (cell + gap);
    const y = top + Math.floor(index / MAX_COLUMNS) * (pill + gap);
    drawPill(context, card, { x, y, w: cell, h: pill }, style);
  });
}

/** Return the context of a canvas that has a size in CSS pixels, and is empty. */
export function prepare(canvas, width, height, scale) {
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Draw one card in a box; also used, larger, by the details. */
export function drawCard(context, card, box, style) {
  const { theme, dim } = style;
  context.fillStyle = card.healthy ? theme.track : theme.badSoft;
  context.fillRect(box.x, box.y, box.w, box.h);
  context.globalAlpha = dim;
  if (card.mig.length) drawInstances(context, card, box, style);
  else drawFill(context, card, box, style);
  context.globalAlpha = 1;
  context.lineWidth = 1;
  context.strokeStyle = card.healthy ? theme.edge : theme.bad;
  context.strokeRect(box.x + 0.5, box.y + 0.5, box.w - 1, box.h - 1);
  if (!card.healthy) drawCross(context, box, theme);
}

function drawFill(context, card, box, style) {
  if (card.held <= 0) return;
  let bottom = box.y + box.h;
  for (const { share, paint } of layers(card, style)) {
    const tall = Math.max(1, Math.round(share * box.h));
    const top = Math.max(box.y, bottom - tall);
    paintBox(context, { x: box.x, y: top, w: box.w, h: bottom - top }, paint, style);
    bottom = top;
  }
}

/** Return the layers of a card's fill from below, which together are what is held. */
function layers(card, style) {
  if (style.mode === "use") return [{ share: card.held, paint: usePaint(card, style.theme) }];
  if (style.mode === "health") return [{ share: card.held, paint: { colour: style.theme.held } }];
  const parts = style.partsOf(card);
  const known = parts.reduce((sum, part) => sum + part.share, 0);
  const scale = known > card.held && known > 0 ? card.held / known : 1;
  const listed = parts.map((part) => ({
    share: part.share * scale,
    paint: namespacePaint(part.holder.namespace, style.theme),
  }));
  const rest = card.held - known * scale;
  if (rest > 0.005) listed.push({ share: rest, paint: { colour: style.theme.held } });
  return listed;
}

/** Return the paint of a namespace: a colour, and stripes for the second round of colours. */
export function namespacePaint(namespace, theme) {
  const place = namespaceColours.place(namespace);
  if (place < 0) return { colour: theme.other };
  return { colour: theme.namespaces[place % NAMESPACE_COLOURS], isStriped: place >= NAMESPACE_COLOURS };
}

function usePaint(card, theme) {
  const use = card.metrics?.utilization;
  if (use === undefined) return { colour: theme.track, isHatched: true };
  if (isIdle(card)) return { colour: theme.track, isIdle: true };
  return { colour: theme.use[useStep(use)] };
}

function paintBox(context, box, paint, { theme, scale }) {
  context.fillStyle = paint.colour;
  context.fillRect(box.x, box.y, box.w, box.h);
  if (paint.isStriped) fillPattern(context, box, theme.surface, 5, scale);
  if (paint.isHatched) fillPattern(context, box, theme.hatch, 4, scale);
  if (paint.isIdle) {
    context.strokeStyle = theme.idle;
    context.lineWidth = 2;
    context.strokeRect(box.x + 1, box.y + 1, Math.max(0, box.w - 2), Math.max(0, box.h - 2));
  }
}

const patterns = new Map();

/** Fill a box with diagonal lines. */
function fillPattern(context, box, colour, step, scale) {
  const key = `${colour} ${step} ${scale}`;
  let pattern = patterns.get(key);
  if (!pattern) {
    if (patterns.size > 32) patterns.clear(); // themes and scales change rarely
    pattern = context.createPattern(stripes(colour, step * scale, scale), "repeat");
    pattern.setTransform(new DOMMatrix().scale(1 / scale));
    patterns.set(key, pattern);
  }
  context.fillStyle = pattern;
  context.fillRect(box.x, box.y, box.w, box.h);
}

function stripes(colour, step, scale) {
  const side = Math.round(step);
  const tile = document.createElement("canvas");
  tile.width = side;
  tile.height = side;
  const context = tile.getContext("2d");
  context.strokeStyle = colour;
  context.lineWidth = 1.2 * scale;
  context.beginPath();
  for (const shift of [-side, 0, side]) {
    context.moveTo(shift - 1, side + 1);
    context.lineTo(shift + side + 1, -1);
  }
  context.stroke();
  return tile;
}

/** Draw the MIG instances of a card from above: one whose placement is known there, others as tall as their slices. */
function drawInstances(context, card, box, style) {
  const paints = migPaints(card, style);
  for (const { instance, from, to } of spansOf(card.mig)) {
    const [top, bottom] = [box.y + from * box.h, box.y + to * box.h];
    if (!instance.free) paintBox(context, { x: box.x, y: top, w: box.w, h: bottom - top }, paints(instance), style);
    context.fillStyle = style.theme.surface;
    for (const [y, isInside] of [[top, from > 0], [bottom, to < 1]]) {
      if (isInside) context.fillRect(box.x, Math.round(y) - 0.5, box.w, 1);
    }
  }
  context.fillStyle = style.theme.ink;
  context.fillRect(box.x, box.y, 2, box.h); // marks MIG also where nothing is held
}

/** Return a function that returns the paint of a held instance: by its placement, else of its profile one after the other. */
function migPaints(card, style) {
  if (style.mode === "use") return () => usePaint(card, style.theme);
  if (style.mode === "health") return () => ({ colour: style.theme.held });
  const waiting = new Map();
  const placed = new Map();
  for (const { holder, part } of style.partsOf(card)) {
    if (part.placement) {
      placed.set(part.placement.start, holder.namespace);
      continue;
    }
    for (const [resource, amount] of Object.entries(part.amounts)) {
      const profile = resource.replace(/^nvidia\.com\/mig-/, "").replaceAll("+", ".");
      const queue = waiting.get(profile) ?? [];
      for (let number = 0; number < Math.min(amount, 64); number += 1) queue.push(holder.namespace);
      waiting.set(profile, queue);
    }
  }
  return ({ profile, placement }) => {
    const namespace = placement ? placed.get(placement.start) : waiting.get(profile.replaceAll("+", "."))?.shift();
    return namespace === undefined ? { colour: style.theme.held } : namespacePaint(namespace, style.theme);
  };
}

function drawPill(context, card, box, style) {
  context.fillStyle = card.healthy ? style.theme.pill : style.theme.badSoft;
  context.fillRect(box.x, box.y, box.w, box.h);
  if (card.held > 0) {
    const [layer] = layers(card, style);
    context.globalAlpha = style.dim;
    const paint = style.mode === "use" ? { colour: style.theme.held } : layer.paint;
    paintBox(context, { ...box, w: box.w * card.held }, paint, style);
    context.globalAlpha = 1;
  }
  if (!card.healthy) {
    context.strokeStyle = style.theme.bad;
    context.lineWidth = 1;
    context.strokeRect(box.x + 0.5, box.y + 0.5, box.w - 1, box.h - 1);
  }
}

function drawCross(context, box, theme) {
  const side = Math.min(box.w, box.h) * 1.1;
  context.save();
  context.translate(box.x + (box.w - side) / 2, box.y + (box.h - side) / 2);
  context.scale(side / 12, side / 12);
  context.lineWidth = (1.8 * 12) / side;
  context.strokeStyle = theme.bad;
  context.stroke(CROSS);
  context.restore();
}
