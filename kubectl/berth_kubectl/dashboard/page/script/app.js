// The frame of all views: header, navigation, connection, and the view that the address names.

import { context } from "./data/context.js";
import { show, sourcesOf } from "./data/sources.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Announcer, Connection } from "./parts/connection.js";
import { useCollections } from "./parts/hooks.js";
import { Link } from "./parts/links.js";
import { ThemeSwitch } from "./parts/theme_switch.js";
import { useLocation } from "./router.js";
import { FleetView } from "./views/fleet/fleet.js";
import { HealthView } from "./views/health.js";
import { HoldersView } from "./views/holders.js";
import { PodView } from "./views/pod/pod.js";
import { QueueView } from "./views/queue.js";

const VIEWS = { fleet: FleetView, queue: QueueView, holders: HoldersView, health: HealthView, pod: PodView };
const TITLES = { fleet: "Fleet", queue: "Queue", holders: "Holders", health: "Health", pod: "Pod" };
const PATHS = { fleet: "/", queue: "/queue", holders: "/holders", health: "/health" };

/** The whole page. */
export function App() {
  const at = useLocation();
  const known = useContext();
  const main = useRef(null);
  const isFirst = useRef(true);
  const namespace = at.view === "pod" ? at.namespace : (at.query.namespace ?? "");

  useEffect(() => {
    show({ view: at.view, namespace, name: at.name });
  }, [at.view, namespace, at.name]);

  useEffect(() => {
    const subject = at.view === "pod" ? `${at.namespace}/${at.name}` : TITLES[at.view];
    document.title = `${subject} – Berth${known?.context ? ` – ${known.context}` : ""}`;
  }, [known, at.view, at.namespace, at.name]);

  useEffect(() => {
    // A new view begins at its top, for eyes and for screen readers.
    if (isFirst.current) isFirst.current = false;
    else {
      scrollTo(0, 0);
      main.current?.focus({ preventScroll: true });
    }
  }, [at.view, at.name]);

  return html`
    <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), main.current?.focus())}>Skip to content</a>
    <${Header} at=${at} context=${known} />
    <main id="main" ref=${main} tabindex="-1" data-view=${at.view} class="view view-${at.view}">
      <${View} key=${at.view} at=${at} />
    </main>
  `;
}

function View({ at }) {
  return html`<${VIEWS[at.view]} ...${at} />`;
}

function Header({ at, context }) {
  const sources = sourcesOf(at.view);
  useCollections(...sources);
  return html`<header class="top">
    <${Link} to="/" class="brand" aria-label="Berth, to the fleet">
      <svg width="26" height="26" viewBox="0 0 32 32" aria-hidden="true">
        <g class="brand-cards">
          <rect x="3" y="5" width="5" height="15" rx="1.2" />
          <rect x="10" y="5" width="5" height="15" rx="1.2" />
          <rect x="17" y="5" width="5" height="15" rx="1.2" class="brand-free" />
          <rect x="24" y="5" width="5" height="15" rx="1.2" />
        </g>
        <path d="M3 26.5h26" class="brand-quay" />
      </svg>
      <span>Berth</span>
    <//>
    <nav aria-label="Views">
      <ul>
        ${Object.entries(PATHS).map(
          ([view, path]) => html`<li key=${view}>
            <${Link} to=${path} aria-current=${at.view === view ? "page" : undefined}>${TITLES[view]}<//>
          </li>`,
        )}
        ${at.view === "pod" && html`<li><a href=${location.pathname} aria-current="page">Pod</a></li>`}
      </ul>
    </nav>
    <div class="top-end">
      ${context &&
      html`<p class="context" title=${["Context", context.context, context.server].filter(Boolean).join(" ")}>
        <small class="context-label">Context </small>${context.context || context.server || "cluster"}
      </p>`}
      <${Connection} sources=${sources} key=${at.view} />
      <${ThemeSwitch} />
    </div>
    <${Announcer} sources=${sources} key=${`announcer ${at.view}`} />
  </header>`;
}

/** Hook: return the context of the page's server; null until it is read. */
function useContext() {
  const [known, set] = useState(null);
  useEffect(() => void context.then(set), []);
  return known;
}
