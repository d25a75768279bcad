// The colours of the current theme, for canvas; style sheets define them as custom properties.

export const NAMESPACE_COLOURS = 8;
export const USE_STEPS = 5;
/** Namespaces with a colour of their own; the others share one. */
export const COLOURED_NAMESPACES = 2 * NAMESPACE_COLOURS;

const listeners = new Set();
let current = null;

/** Return the colours of the theme. */
export function colours() {
  current ??= read();
  return current;
}

/** Call a function whenever the theme has changed; return how to end that. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Set the theme: `light`, `dark`, or empty for the system's. */
export function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("berth-theme", theme);
  } catch {
    // Storage is disabled: the choice lasts as long as the page.
  }
  changed();
}

/** Return the theme that was chosen; empty for the system's. */
export function chosenTheme() {
  return document.documentElement.dataset.theme ?? "";
}

function changed() {
  current = null;
  for (const listener of [...listeners]) listener();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
matchMedia("(forced-colors: active)").addEventListener("change", changed);

function read() {
  // An element resolves what a custom property leaves open: which theme it is.
  const probe = document.createElement("i");
  probe.hidden = true;
  document.body.append(probe);
  const of = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const several = (name, length) => Array.from({ length }, (_, index) => of(`${name}-${index}`));
  const read = {
    track: of("track"),
    edge: of("track-edge"),
    pill: of("pill"),
    held: of("held"),
    other: of("ns-other"),
    bad: of("bad"),
    badSoft: of("bad-soft"),
    ink: of("ink"),
    hatch: of("hatch"),
    surface: of("surface"),
    mark: of("accent"),
    idle: of("idle"),
    namespaces: several("ns", NAMESPACE_COLOURS),
    use: several("use", USE_STEPS),
  };
  probe.remove();
  return read;
}

/** Return the step of a use, 0 to 1, on the scale. */
export function useStep(use) {
  return Math.min(USE_STEPS - 1, Math.floor(use * USE_STEPS));
}

/** Gives each namespace a colour that it keeps; the first ones are those that hold most. */
export class NamespaceColours {
  #places = new Map();

  /** Grows when a namespace got a colour. */
  version = 0;

  /** Take the namespaces with what they hold; new ones are placed after those that are known. */
  update(held) {
    const fresh = [...held].filter(([name]) => !this.#places.has(name));
    fresh.sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1));
    for (const [name] of fresh) {
      if (this.#places.size >= COLOURED_NAMESPACES) break;
      this.#places.set(name, this.#places.size);
      this.version += 1;
    }
  }

  /** Return a namespace's place; -1 if it shares the colour of the others. */
  place(namespace) {
    return this.#places.get(namespace) ?? -1;
  }
}

export const namespaceColours = new NamespaceColours();
