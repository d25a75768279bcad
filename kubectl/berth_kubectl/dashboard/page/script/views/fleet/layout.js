// Where the boxes of nodes are: groups, rows and their heights. Pure.

import { columnsOf, drawingSize, SIZES } from "../../drawing/node.js";
import { total } from "../../data/fleet.js";

export const HEAD_HEIGHT = 46;
const GROUP_GAP = 14;
export const TILE_GAP = { s: 4, m: 8, l: 10 };
/** Of a gap between two boxes of a row, as a multiple of the usual one. */
const WIDEST_GAP = 2;

const KEYS = { model: (node) => node.model, zone: (node) => node.zone, rack: (node) => node.rack };
const NAMELESS = { model: "No model", zone: "No zone", rack: "No rack" };

const collator = new Intl.Collator("en", { numeric: true });

/** Return the names of nodes in their order. */
export function sorted(nodes) {
  return [...nodes].sort((a, b) => (a.order < b.order ? -1 : 1)).map((node) => node.name);
}

/** Return the nodes that match all words of a search. */
export function matching(nodes, search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return words.length ? nodes.filter((node) => words.every((word) => node.text.includes(word))) : nodes;
}

/** Return the groups of nodes, by name: `{key, title, nodes, sums}`. */
export function grouped(nodes, by) {
  if (!KEYS[by]) return nodes.length ? [{ key: "", title: "", nodes, sums: total(nodes) }] : [];
  const groups = new Map();
  for (const node of nodes) {
    const key = KEYS[by](node);
    if (groups.has(key)) groups.get(key).push(node);
    else groups.set(key, [node]);
  }
  return [...groups]
    .sort(([a], [b]) => collator.compare(a, b))
    .map(([key, members]) => ({ key, title: key || NAMELESS[by], nodes: members, sums: total(members) }));
}

/** Return the largest size in which a fleet needs few windows; of a large fleet, each node is small. */
export function bestSize(nodes, { width, height }) {
  const most = mostOf(nodes);
  for (const [size, windows] of [["l", 0.85], ["m", 3]]) {
    const { columns, tile } = fitted(size, most, width);
    const rows = Math.ceil(nodes.length / columns);
    if (columns >= 3 && rows * (tile.height + TILE_GAP[size]) <= windows * height) return size;
  }
  return width < 600 ? "m" : "s";
}

/** Return the most GPUs and other devices that one of some nodes has. */
function mostOf(nodes) {
  let gpus = 1;
  let others = 0;
  for (const node of nodes) {
    gpus = Math.max(gpus, node.gpus.length);
    others = Math.max(others, node.others.length);
  }
  return { gpus, others };
}

/**
 * Return how many boxes are in a row, their size, and the distance from one to the next: they fill the row as far as
 * cards and gaps may be wider.
 */
function fitted(size, { gpus, others }, width) {
  const { cell, widest, pad, least, gap } = SIZES[size];
  const edges = 2 * pad + 2;
  const narrow = Math.max(least, columnsOf(gpus) * (cell + gap) - gap + edges);
  const columns = Math.max(1, Math.floor((width + TILE_GAP[size]) / (narrow + TILE_GAP[size])));
  const room = Math.max(narrow, Math.floor((width + TILE_GAP[size]) / columns) - TILE_GAP[size]) - edges;
  const filling = Math.min(widest, Math.floor((room + gap) / columnsOf(gpus)) - gap);
  const tile = tileOf(size, { gpus, others, cell: Math.max(cell, filling) });
  return { columns, tile, step: stepOf(size, tile, { columns, width }) };
}

/** Return the distance from one box to the next if what is left of a row is given to its gaps, to a limit. */
function stepOf(size, tile, { columns, width }) {
  const filling = columns > 1 ? (width - tile.width) / (columns - 1) : 0;
  return Math.max(tile.width + TILE_GAP[size], Math.min(filling, tile.width + WIDEST_GAP * TILE_GAP[size]));
}

/** Return the size of the box of a node; the same object each time, so that a box knows that it has not changed. */
function tileOf(size, cards) {
  const key = `${size} ${cards.gpus} ${cards.others} ${cards.cell}`;
  let tile = tiles.get(key);
  if (!tile) {
    if (tiles.size > MAX_TILES) tiles.clear();
    const { pad, head, least } = SIZES[size];
    const drawing = drawingSize(size, cards);
    const width = Math.max(least, drawing.width + 2 * pad + 2);
    tile = { drawing, width, height: drawing.height + head + 2 * pad + 2 };
    tiles.set(key, tile);
  }
  return tile;
}

const MAX_TILES = 512;
const tiles = new Map();

/**
 * Return all rows with their places: `{rows, height, order}`.
 *
 * A row is a head `{kind: "head", y, height, group}` or boxes `{kind: "nodes", y, height, nodes, tile, step, first}`,
 * where `step` is the distance from one box to the next, and `first` is the place of its first node in `order`, the
 * nodes as the arrow keys go.
 */
export function layout(groups, { width, size }) {
  const gap = TILE_GAP[size];
  const rows = [];
  const order = [];
  let y = 0;
  for (const group of groups) {
    if (group.title) {
      rows.push({ kind: "head", key: `head ${group.key}`, y, height: HEAD_HEIGHT, group });
      y += HEAD_HEIGHT;
    }
    const { columns, tile, step } = fitted(size, mostOf(group.nodes), width);
    for (let at = 0; at < group.nodes.length; at += columns) {
      const nodes = group.nodes.slice(at, at + columns);
      rows.push({ kind: "nodes", key: `${group.key} ${at}`, y, height: tile.height, nodes, tile, step, first: order.length });
      for (const node of nodes) order.push(node);
      y += tile.height + gap;
    }
    y += GROUP_GAP;
  }
  return { rows, order, height: y };
}

/** Return the part of the rows that is between two heights: `[from, to)`. */
export function visibleRows(rows, top, bottom) {
  let from = 0;
  let to = rows.length;
  while (from < to) {
    const middle = (from + to) >> 1;
    if (rows[middle].y + rows[middle].height < top) from = middle + 1;
    else to = middle;
  }
  let end = from;
  while (end < rows.length && rows[end].y <= bottom) end += 1;
  return [from, end];
}

/** Return the place in `order` that a key leads to from another place. */
export function moved({ rows, order }, place, key, page) {
  const last = order.length - 1;
  if (key === "ArrowLeft") return Math.max(0, place - 1);
  if (key === "ArrowRight") return Math.min(last, place + 1);
  if (key === "Home") return 0;
  if (key === "End") return last;
  const lines = rows.filter((row) => row.kind === "nodes");
  const line = lines.findIndex((row) => place < row.first + row.nodes.length);
  const step = { ArrowUp: -1, ArrowDown: 1, PageUp: -page, PageDown: page }[key];
  const target = lines[Math.max(0, Math.min(lines.length - 1, line + step))];
  return target.first + Math.min(place - lines[line].first, target.nodes.length - 1);
}
