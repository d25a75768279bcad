// Tables that can be sorted, of which only the visible rows are in the document.

import { html, useLayoutEffect, useRef, useState } from "../html.js";
import { Glyph } from "../drawing/glyphs.js";

/** Rows above and below the window that are rendered, too. */
const MARGIN = 12;
/** Tables with at most this many rows are rendered whole. */
const WHOLE = 80;

/** Return the rows in the order of a column; `sort` is its key, with a minus for the other direction. */
export function sortRows(rows, columns, sort) {
  const column = columns.find((each) => each.key === sort.replace(/^-/, ""));
  if (!column?.value) return rows;
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...rows].sort((a, b) => sign * compare(column.value(a), column.value(b)));
}

const collator = new Intl.Collator("en", { numeric: true });

function compare(a, b) {
  if (a === b) return 0; // infinite ones have no difference
  return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b));
}

/**
 * A table. A column is `{key, title, value(row), cell(row), numeric, wide}`; without `value` it cannot be sorted by.
 * `rowProps(row)` returns attributes of a row.
 */
export function Table({ caption, columns, rows, keyOf, rowProps = () => ({}), sort, setSort, rowHeight = 40 }) {
  const body = useRef(null);
  const [from, to] = useWindow(body, rows.length, rowHeight);
  return html`<div class="table-box" tabindex="0" role="region" aria-label=${caption}>
    <table aria-rowcount=${rows.length + 1}>
      <caption class="visually-hidden">${caption}</caption>
      <thead>
        <tr aria-rowindex="1">
          ${columns.map((column) => html`<${Head} key=${column.key} column=${column} sort=${sort} setSort=${setSort} />`)}
        </tr>
      </thead>
      <tbody ref=${body}>
        ${from > 0 && html`<tr key="before" class="spacer" aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${from * rowHeight}px` }}></td></tr>`}
        ${rows.slice(from, to).map(
          (row, index) => html`<tr key=${keyOf(row)} aria-rowindex=${from + index + 2} style=${{ height: `${rowHeight}px` }} ...${rowProps(row)}>
            ${columns.map((column, place) => html`<${Cell} key=${column.key} column=${column} row=${row} isFirst=${place === 0} />`)}
          </tr>`,
        )}
        ${to < rows.length && html`<tr key="after" class="spacer" aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${(rows.length - to) * rowHeight}px` }}></td></tr>`}
      </tbody>
    </table>
  </div>`;
}

function Head({ column, sort = "", setSort }) {
  const isSorted = sort.replace(/^-/, "") === column.key;
  const isDown = isSorted && sort.startsWith("-");
  const order = isSorted ? (isDown ? "descending" : "ascending") : undefined;
  const click = () => setSort(isSorted && !isDown ? `-${column.key}` : column.key);
  return html`<th scope="col" class=${classesOf(column)} aria-sort=${order}>
    ${column.value && setSort
      ? html`<button type="button" onClick=${click}>
          ${column.title}<span class="sort-mark">${isSorted && html`<${Glyph} name=${isDown ? "down" : "up"} size="10" />`}</span>
        </button>`
      : column.title}
  </th>`;
}

function Cell({ column, row, isFirst }) {
  const content = column.cell ? column.cell(row) : column.value(row);
  return isFirst || column.isHeader
    ? html`<th scope="row" class=${classesOf(column)}>${content}</th>`
    : html`<td class=${classesOf(column)}>${content}</td>`;
}

function classesOf(column) {
  return [`col-${column.key}`, column.numeric ? "numeric" : "", column.wide ? "wide" : ""].filter(Boolean).join(" ");
}

/** Hook: return which rows of a body are in the window: `[from, to]`. */
function useWindow(ref, length, rowHeight) {
  const [range, set] = useState([0, WHOLE]);
  useLayoutEffect(() => {
    if (length <= WHOLE) {
      set([0, length]);
      return undefined;
    }
    const update = () => {
      if (!ref.current) return;
      const top = -ref.current.getBoundingClientRect().top;
      const from = Math.max(0, Math.floor(top / rowHeight) - MARGIN);
      const to = Math.min(length, Math.ceil((top + innerHeight) / rowHeight) + MARGIN);
      set((before) => (before[0] === from && before[1] === to ? before : [from, Math.max(from, to)]));
    };
    update();
    addEventListener("scroll", update, { passive: true });
    addEventListener("resize", update);
    return () => {
      removeEventListener("scroll", update);
      removeEventListener("resize", update);
    };
  }, [length, rowHeight]);
  return length <= WHOLE ? [0, length] : [Math.min(range[0], length), Math.min(range[1], length)];
}
