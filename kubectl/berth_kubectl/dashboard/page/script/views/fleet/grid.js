// The boxes of all nodes, of which only the visible rows are in the document.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../html.js";
import { holderIndex } from "../../data/sources.js";
import { counted } from "../../text/amounts.js";
import { ShareBar } from "./summary.js";
import { layout, moved, TILE_GAP, visibleRows } from "./layout.js";
import { Tile } from "./tile.js";

/** Pixels above and below the window in which rows are rendered, too. */
const MARGIN = 300;
const KEYS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"]);

const partsOf = (node, card) => holderIndex.partsOf(node, card);

/**
 * Show the groups; `open` is the name of the node whose details are shown, `paint` changes with all drawings, and the
 * ref `pending` has the name of the node that is to get the focus.
 */
export function Grid({ groups, size, mode, paint, open, openNode, pending }) {
  const box = useRef(null);
  const width = useWidth(box);
  const plan = useMemo(() => layout(groups, { width, size }), [groups, width, size]);
  const [from, to] = useVisible(box, plan);
  const [stop, setStop] = useState("");
  const places = useMemo(() => new Map(plan.order.map((node, place) => [node.name, place])), [plan]);
  const stopName = places.has(stop) ? stop : plan.order[0]?.name;

  useEffect(() => {
    if (!pending.current) return;
    const place = places.get(pending.current);
    if (place === undefined) return;
    const row = rowOf(plan, place);
    scrollToRow(box.current, row);
    const target = box.current.querySelector(`[data-node="${CSS.escape(pending.current)}"]`);
    if (!target) return; // rendered after the scrolling
    pending.current = "";
    target.focus({ preventScroll: true });
  });

  const keys = (event) => {
    if (!KEYS.has(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const page = Math.max(1, Math.floor(innerHeight / 2 / (plan.rows.at(-1).height + TILE_GAP[size])));
    const place = moved(plan, places.get(stopName), event.key, page);
    pending.current = plan.order[place].name;
    scrollToRow(box.current, rowOf(plan, place));
    setStop(plan.order[place].name);
  };
  const click = (event) => {
    const name = event.target.closest("[data-node]")?.dataset.node;
    if (!name) return;
    setStop(name);
    openNode(name === open ? "" : name);
  };

  return html`<div
    class="grid"
    ref=${box}
    role="group"
    aria-label="Nodes; arrow keys move, Enter shows details"
    style=${{ height: `${plan.height}px` }}
    onKeyDown=${keys}
    onClick=${click}
  >
    ${width > 0 &&
    plan.rows.slice(from, to).flatMap((row) =>
      row.kind === "head"
        ? [html`<${GroupHead} key=${row.key} row=${row} />`]
        : row.nodes.map(
            // Directly in the grid, so that a box keeps its element, and the focus, when it moves to another row.
            (node, column) => html`<${Tile}
              key=${`node ${node.name}`}
              node=${node}
              size=${size}
              mode=${mode}
              tile=${row.tile}
              left=${Math.round(column * row.step)}
              top=${row.y}
              paint=${`${paint} ${holderIndex.changes.get(node.name) ?? 0}`}
              partsOf=${partsOf}
              isOpen=${node.name === open}
              isStop=${node.name === stopName}
            />`,
          ),
    )}
  </div>`;
}

function GroupHead({ row }) {
  const { title, sums } = row.group;
  return html`<div class="group-head" style=${{ top: `${row.y}px` }}>
    <h2 title=${title}>${title}</h2>
    <p>
      <span class="group-size">
        ${counted(sums.nodes, "node")} <span aria-hidden="true">·</span> ${counted(sums.gpus, "GPU")}
        <span aria-hidden="true"> · </span>
      </span>
      <strong>${counted(sums.free, "free", "free")}</strong>
    </p>
    <${ShareBar} sums=${sums} />
  </div>`;
}

/** Return the row of a place. */
function rowOf(plan, place) {
  return plan.rows.find((row) => row.kind === "nodes" && place < row.first + row.nodes.length);
}

function scrollToRow(box, row) {
  const top = box.getBoundingClientRect().top + scrollY + row.y;
  const header = 72;
  if (top - header < scrollY) scrollTo({ top: top - header });
  else if (top + row.height + 24 > scrollY + innerHeight) scrollTo({ top: top + row.height + 24 - innerHeight });
}

/** Hook: return the width of an element. */
function useWidth(ref) {
  const [width, set] = useState(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => set(Math.floor(entry.contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

/** Hook: return which rows are in the window, or close to it. */
function useVisible(ref, plan) {
  const [range, set] = useState([0, 0]);
  const current = useRef(range);
  useLayoutEffect(() => {
    const update = () => {
      if (!ref.current) return;
      const top = -ref.current.getBoundingClientRect().top;
      const next = visibleRows(plan.rows, top - MARGIN, top + innerHeight + MARGIN);
      if (next[0] === current.current[0] && next[1] === current.current[1]) return;
      current.current = next;
      set(next);
    };
    update();
    addEventListener("scroll", update, { passive: true });
    addEventListener("resize", update);
    return () => {
      removeEventListener("scroll", update);
      removeEventListener("resize", update);
    };
  }, [plan]);
  return range;
}
