// Switches between light, dark and the system's theme.

import { html, useState } from "../html.js";
import { chosenTheme, setTheme } from "../drawing/colours.js";
import { Glyph } from "../drawing/glyphs.js";

const NEXT = { "": "light", light: "dark", dark: "" };
const TEXTS = { "": "system", light: "light", dark: "dark" };

/** A button that goes through the themes. */
export function ThemeSwitch() {
  const [theme, set] = useState(chosenTheme());
  const click = () => {
    setTheme(NEXT[theme]);
    set(NEXT[theme]);
  };
  const text = `Theme: ${TEXTS[theme]}`;
  return html`<button type="button" class="icon-button" aria-label=${text} title=${text} onClick=${click}>
    <${Glyph} name=${TEXTS[theme]} size="16" />
  </button>`;
}
