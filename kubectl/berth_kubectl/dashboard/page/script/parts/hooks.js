// Hooks that several views use.

import { useEffect, useState } from "../html.js";
import { onTheme } from "../drawing/colours.js";

/** Hook: draw again when one of some collections has changed. */
export function useCollections(...collections) {
  const [, draw] = useState(0);
  useEffect(() => {
    const ends = collections.map((each) => each.subscribe(() => draw((number) => number + 1)));
    return () => ends.forEach((end) => end());
  }, collections);
}

/** Hook: draw again each time some milliseconds have passed. */
export function useTicks(milliseconds = 1000) {
  const [, draw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => draw((number) => number + 1), milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds]);
}

/** Hook: return a number that grows with each change of the theme. */
export function useTheme() {
  const [number, set] = useState(0);
  useEffect(() => onTheme(() => set((before) => before + 1)), []);
  return number;
}

/** Hook: return the size of the window: `{width, height}`. */
export function useWindowSize() {
  const [size, set] = useState({ width: innerWidth, height: innerHeight });
  useEffect(() => {
    const resized = () => set({ width: innerWidth, height: innerHeight });
    addEventListener("resize", resized);
    return () => removeEventListener("resize", resized);
  }, []);
  return size;
}

/** Hook: call a function on key presses outside of fields; `keys` is key -> function. */
export function useKeys(keys) {
  useEffect(() => {
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const isField = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      if (isField && event.key !== "Escape") return;
      const action = keys[event.key];
      if (action && action(event) !== false) event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
}
