// The Fleet view: nodes as boxes of cards.

import { total } from "../../data/fleet.js";
import { fleet, holderIndex, holders } from "../../data/sources.js";
import { namespaceColours } from "../../drawing/colours.js";
import { Glyph } from "../../drawing/glyphs.js";
import { html, useMemo, useRef } from "../../html.js";
import { Choice } from "../../parts/choice.js";
import { useCollections, useKeys, useTheme, useWindowSize } from "../../parts/hooks.js";
import { Loading, Notice, Refusal, Restricted, rightOf } from "../../parts/notices.js";
import { Search } from "../../parts/search.js";
import { setQuery } from "../../router.js";
import { count, counted } from "../../text/amounts.js";
import { Details } from "./details.js";
import { Grid } from "./grid.js";
import { bestSize, grouped, matching, sorted } from "./layout.js";
import { Legend, Summary } from "./summary.js";

const COLOURS = [
  ["namespace", "Namespace"],
  ["use", "Use"],
  ["health", "Health"],
];
const GROUPS = [
  ["model", "Model"],
  ["zone", "Zone"],
  ["rack", "Rack"],
  ["none", "None"],
];
const SIZES = [
  ["s", "S"],
  ["m", "M"],
  ["l", "L"],
];

/** Width of a window, in CSS pixels, up to which the legend is closed at first; style sheets have the same. */
const NARROW = 600;

/** The view; its state is in the query. */
export function FleetView({ query }) {
  useCollections(fleet, holders);
  const theme = useTheme();
  const names = useMemo(() => sorted(fleet.rows.values()), [fleet.members]);
  const nodes = useMemo(() => names.map((name) => fleet.rows.get(name)), [names, fleet.version]);
  const search = query.search ?? "";
  const by = query.group ?? "model";
  const mode = query.colour ?? bestColour(nodes);
  const shown = useMemo(() => matching(nodes, search), [nodes, search]);
  const groups = useMemo(() => grouped(shown, by), [shown, by]);
  const windowSize = useWindowSize();
  const best = useMemo(() => bestSize(nodes, windowSize), [names, windowSize]);
  const size = ["s", "m", "l"].includes(query.size) ? query.size : best;
  if (holders.isComplete) namespaceColours.update(holderIndex.namespaces); // else the first ones were not the largest
  const sums = useMemo(() => total(shown), [shown]);
  const open = query.node ? fleet.rows.get(query.node) : undefined;
  const pending = useRef("");
  const close = () => {
    pending.current = query.node;
    setQuery({ node: "" });
  };
  useKeys({ Escape: () => (query.node ? close() : false) });

  if (!nodes.length) return html`<h1 class="visually-hidden">Fleet</h1><${Empty} />`;
  return html`
    <h1 class="visually-hidden">Fleet</h1>
    ${fleet.error && fleet.error.status !== 0 && html`<${Refusal} error=${fleet.error} resource="fleet" />`}
    <${Summary} sums=${sums} isComplete=${fleet.isComplete} search=${search} />
    <div class="tools">
      <${Search}
        value=${search}
        label="Search nodes by name, model, zone, rack or state"
        placeholder="Search name, model, zone, rack, state"
        change=${(text) => setQuery({ search: text }, { replace: true })}
      />
      <${Choice} label="Colour" name="colour" value=${mode} options=${COLOURS} change=${(value) => setQuery({ colour: value })} />
      <${Choice} label="Group" name="group" value=${by} options=${GROUPS} change=${(value) => setQuery({ group: value })} />
      <${Choice} label="Size" name="size" value=${size} options=${SIZES} change=${(value) => setQuery({ size: value })} />
    </div>
    <${Hints} mode=${mode} search=${search} shown=${shown.length} all=${nodes.length} />
    <${Legend}
      mode=${mode}
      namespaces=${holderIndex.namespaces}
      isPartial=${holders.error?.status === 403 || holders.isRestricted}
      sums=${sums}
      isNarrow=${windowSize.width <= NARROW}
    />
    <div class="fleet ${query.node ? "has-details" : ""}">
      ${shown.length
        ? html`<${Grid}
            groups=${groups}
            size=${size}
            mode=${mode}
            paint=${`${namespaceColours.version} ${theme}`}
            open=${query.node ?? ""}
            openNode=${(name) => setQuery({ node: name })}
            pending=${pending}
          />`
        : html`<${Notice} glyph="search" title="No node matches"><p>Words are searched in names, models, zones, racks and states.</p><//>`}
      ${query.node && html`<${Details} key=${query.node} name=${query.node} node=${open} mode=${mode} close=${close} />`}
    </div>
  `;
}

/** Return what the colours show unless the user has chosen: the best of what is known. */
function bestColour(nodes) {
  if (holders.error?.status !== 403) return "namespace";
  return nodes.some((node) => node.sums.measured) ? "use" : "health";
}

function Empty() {
  if (fleet.error) return html`<${Refusal} error=${fleet.error} resource="fleet" retry=${() => fleet.retry()} />`;
  if (!fleet.isComplete) return html`<${Loading} what="the fleet" />`;
  return html`<${Notice} title="No node has devices">
    <p>The agent runs on each node with devices and publishes a Device object. None was found; see whether the agents run:</p>
    <pre class="command" tabindex="0"><code>kubectl get pods -A -l app.kubernetes.io/name=berth-agent -o wide</code></pre>
  <//>`;
}

function Hints({ mode, search, shown, all }) {
  const right = rightOf("holders", "");
  return html`
    ${mode === "namespace" && html`<${Restricted} source=${holders} />`}
    ${holders.error?.status === 403 &&
    html`<p class="hint" data-forbidden="holders">
      <${Glyph} name="lock" /> You may not list <code>${right.name}</code> ${right.where}: cards show that they are held, not by which pods.
    </p>`}
    <p class="visually-hidden" role="status">${search ? `${counted(shown, "node")} of ${count(all)} match` : ""}</p>
  `;
}
